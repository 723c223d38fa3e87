"""A Spark job's data, all or nothing.

Tasks prepare finished batches where nobody sees them; the driver's commit publishes all of them, in
every partition and topic, with one write.

    1 stage     task    batches -> staging-0/TRANSACTION/ATTEMPT/, extents -> commit message
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

    a crash in   leaves                                        who repairs it, how
    stage        files in staging                              nobody needs to; removed by age
    place        bytes and files past the recorded ends        the next writer cuts them
    prepare      the same, and a record past the end           the next writer overwrites them
    flip         some partitions old, some new, PrepareCommit  readers overlay its states; the next
                                                               committer, or who appends to one of
                                                               them, rolls forward
    complete     all partitions new, PrepareCommit pending     the same, with nothing left to do
    rewrite      a segment past the end, or old ones below     the next writer cuts the one, the next
                 the log start                                 rewriting deletes the others

The commit lock is held from 2 to 6, the locks of all touched partitions from 2 to 4.

Module by module: `staging` step 1, `messages` what is written to __transaction_state, `coordinator`
steps 2 to 5 and rolling forward, `history` what is written to __commits, `sequences` which commits
come again, `rewriting` step 6, `snapshot` the one consistent answer to where partitions end, `repair` logs that cannot be
read any more.
"""

from spark_kbatch.config import INT_MAX, TopicConfig

# One record per commit would pass max.message.bytes with a few thousand partitions.
INTERNAL_TOPIC_CONFIG = TopicConfig(max_message_bytes=INT_MAX)
TRANSACTION_STATE_TOPIC = "__transaction_state"
COMMITS_TOPIC = "__commits"
