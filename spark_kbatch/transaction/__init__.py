"""A Spark job's data, all or nothing.

Tasks prepare finished batches where nobody sees them; the driver's commit publishes all of them, in
every partition and topic, with one write.

    1 stage     task    batches -> staging-0/TRANSACTION/ATTEMPT/, extents -> commit message
    2 place     driver  base offsets and leader epochs are set; batches go behind the recorded end of
                        their logs, by copying, or by renaming a large file to be a segment
    3 prepare   driver  PrepareCommit -> __transaction_state, with the new state of every partition;
                        CompleteCommit's bytes behind it; then the slot that covers PrepareCommit:
                        the COMMIT POINT
    4 flip      driver  each partition's new state, over lower sequence numbers only; for a stream,
                        where its last commit is
    5 complete  driver  the slot of __transaction_state moves over CompleteCommit

    a crash in    is followed by      and leaves                           who repairs it, how
    stage         nothing             files in staging                     nobody needs to; they are
                                                                           removed by age
    place         nothing             bytes and files past the recorded    the next writer cuts them
                                      ends
    prepare       nothing             the same, in __transaction_state     the next writer writes over
                                      too                                  them
    decide        nothing or all      the slot, which only a loss of       whoever comes next finds it
                                      power may take                       or not, and flushes it first
    flip          all                 some partitions old, some new,       readers overlay its states;
                                      PrepareCommit                        the next committer, or who
                                                                           appends to one of them, rolls
                                                                           forward
    complete      all                 all partitions new, PrepareCommit    the same, with nothing left
                                      pending                              to do
    tidy          all                 staged files that nobody needs       as of stage
    abort         nothing             some of the staged files             as of stage
    roll forward  all                 as flip and complete                 the same
    gc            what was there      files that nobody names              the next run

What follows is what every reader then sees of the job's data, for good: a crash is a process that is
killed, or a loss of power with `flush` on. With `flush` off a loss of power may take whole batches
from the ends of partitions, also when it comes later.

The commit lock is held from 2 to 5, the locks of all touched partitions from 2 to 4.

Module by module: `staging` step 1, `messages` what is written to __transaction_state, `coordinator`
steps 2 to 5 and rolling forward, `sequences` which commits come again, `snapshot` the one consistent
answer to where partitions end, `repair` logs that cannot be read any more.
"""

TRANSACTION_STATE_TOPIC = "__transaction_state"
