# Outlives the process that holds the other end of standard input, and then ends the servers which that process left.
# $1: the folder of the environment. Each server has a folder in it, with its process id in the file `pid`. A server
# writes that file itself before it becomes a server. The first step below makes this fail from then on. So each server
# that runs is listed, and none starts later.
trap '' HUP INT QUIT TERM
while read -r _; do :; done
mv "$1" "$1.ended" || exit 0
for pid in "$1.ended"/*/pid; do
    if [ -f "$pid" ]; then
        kill -9 "$(cat "$pid")"
    fi
done
# A dying server may still finish a write, so a folder may not be empty at the first attempt.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$1.ended" && exit 0
    sleep 0.05
done
