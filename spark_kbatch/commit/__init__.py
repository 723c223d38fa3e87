"""A Spark job's data, all or nothing.

Tasks prepare finished batches where nobody sees them; the driver's commit publishes all of them, in
every partition and topic, with one write.

    1 stage     task    batches -> staging-N/TRANSACTION/ATTEMPT/, extents -> commit message
    2 place     driver  base offsets and leader epochs are set; batches go behind the recorded end of
                        their logs, by copying, or by renaming a large file to be a segment; so does
                        the commit's record of itself, in __commits, a partition like the others
    3 prepare   driver  PrepareCommit -> __transaction_state, with the new state of every partition;
                        CompleteCommit's bytes behind it; then the slot that covers PrepareCommit:
                        the COMMIT POINT
    4 flip      driver  each partition's new state, over lower sequence numbers only; for a stream,
                        where its last commit is
    5 complete  driver  the slot of __transaction_state moves over CompleteCommit
    6 rewrite   driver  where __transaction_state has grown: what still counts goes to a segment behind
                        its end, then one slot moves its log start there

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
    rewrite       all                 a segment past the end, or old       the next writer cuts the one,
                                      ones below the log start, of         the next rewriting deletes
                                      __transaction_state                  the others
    tidy          all                 staged files that nobody needs       as of stage
    abort         nothing             some of the staged files             as of stage
    roll forward  all                 as flip and complete                 the same
    gc            what was there      files that nobody names              the next run

Of a topic with several replicas all of it is done once for each: 1 in the staging-N beside each log dir,
2 to 4 in each replica that is in sync. One whose disk fails in 1 is given what another one has staged;
in 2 it leaves the in-sync replicas before the commit point, in 4 behind it. The last one that is in sync
cannot leave: its state is kept in PATH/partitions/ until its disk is back.

What follows is what every reader then sees of the job's data, for good: a crash is a process that is
killed, or a loss of power with `flush` on. With `flush` off a loss of power may take whole batches
from the ends of partitions, also when it comes later.

The commit lock is held from 2 to 6, the locks of all touched partitions from 2 to 4.

Module by module: `staging` step 1, `messages` what is written to __transaction_state, `coordinator`
steps 2 to 5 and rolling forward, `history` what is written to __commits, `sequences` which commits
come again, `rewriting` step 6, `records` what the internal topics are read with, `snapshot` the one
consistent answer to where partitions end, `agreements` what tasks of one action agreed on, `repair` logs that cannot be read any more.
"""

from spark_kbatch.model import INT_MAX
from spark_kbatch.options.topic import TopicConfig

# One record per commit would pass max.message.bytes with a few thousand partitions.
INTERNAL_TOPIC_CONFIG = TopicConfig(max_message_bytes=INT_MAX)
TRANSACTION_STATE_TOPIC = "__transaction_state"
COMMITS_TOPIC = "__commits"
