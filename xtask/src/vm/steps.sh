# Runs 0.sh, 1.sh and so on, each with the time limit beside it, and notes how each ended: its
# number, its exit status (124 and 137: out of time), and the seconds since the boot before and after.
cd "$1" || exit 126
number=0
while [ -e $number.sh ]; do
    read -r limit <$number.limit
    read -r start rest </proc/uptime
    timeout --kill-after=5 "$limit" sh $number.sh >$number.log 2>&1
    status=$?
    read -r end rest </proc/uptime
    echo "$number $status $start $end" >>ended
    number=$((number + 1))
done
