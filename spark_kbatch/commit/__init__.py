"""Atomic commits of Spark jobs: all data of a job becomes visible to readers, or none of it.

Tasks write finished batches to a staging area that no reader looks at. The driver's commit then
publishes all of them, in every partition and topic, with a single write: the COMMIT POINT.

    step        where   what happens
    1 stage     task    Batches are written to staging-N/TRANSACTION/ATTEMPT/. A list of extents (file,
                        position, size) goes to the driver.
    2 place     driver  Base offsets and leader epochs are set. The batches are put past the recorded
                        end of their logs: copied, or for a large file by renaming it to be a segment.
                        The commit's history record is placed the same way, as a batch of one more
                        partition, __commits-0.
    3 prepare   driver  PrepareCommit, with the new state of every partition, is appended to
                        __transaction_state, and after it the bytes of CompleteCommit. Then the slot
                        that covers PrepareCommit is written: the COMMIT POINT.
    4 flip      driver  Each partition's new state is written, only ever over a lower sequence number.
                        For a stream, its last committed sequence is saved.
    5 complete  driver  The slot of __transaction_state moves past CompleteCommit.
    6 rewrite   driver  If __transaction_state has grown, what still counts is copied to a segment past
                        its end, and one slot moves its log start there.

A crash at any point leaves the job's data visible as a whole or not at all:

    crash in      visible         what is left                   repaired by
    stage         nothing         staged files                   no one needs to; they are removed
                                                                 after staging.retention.ms
    place         nothing         bytes and files past the       the next writer or gc, which discards
                                  recorded ends                  them
    prepare       nothing         the same, and bytes past the   the next writer, which overwrites them
                                  end of __transaction_state
    commit point  nothing or all  a slot that only a power loss  the next reader or writer sees it or
                                  can take back                  not; a writer flushes it first
    flip          all             PrepareCommit, with some       readers apply its states themselves;
                                  partitions flipped and others  the next committer, or the next append
                                  not                            to one of these partitions, rolls
                                                                 forward
    complete      all             PrepareCommit, with all        the same; there is nothing to flip
                                  partitions flipped
    rewrite       all             a segment past the end of      the next writer discards the former,
                                  __transaction_state, or        the next rewrite deletes the latter
                                  segments below its log start
    cleanup       all             staged files                   as of stage
    abort         nothing         some of the staged files       as of stage
    roll forward  all             as of flip and complete        the same
    gc            as before       files that nothing refers to   the next gc

"Visible" is what every reader sees of the job from then on, for good. A crash is a killed process, or
a power loss with `flush` on. With `flush` off, a power loss may take whole batches from the ends of
partitions, even long after the commit.

It lies below the high watermark. Where a client's transaction is open, readers of committed records come to it
when that has ended: the last stable offset stays at the transaction's start, in the states of step 2 too.

A commit that fails before the commit point, without a crash, discards what it has placed itself: it may be
what fills the disk.

With several replicas, all of this is done once for each: step 1 in the staging-N beside each log dir,
steps 2 to 4 in every in-sync replica. If a replica's disk fails in step 1, the replica is given what
was staged for another one; in step 2, it leaves the ISR before the commit point; in step 4, after it.
The last in-sync replica cannot leave: its new state is kept in PATH/partitions/ until its disk is back,
and so is that of an only replica, if the cluster has other log dirs. The commit is complete then, and all
that does not need that disk goes on. What is kept ends with the topic's deletion, and with
`log-dirs --replace --unclean`.

The commit lock is held from step 2 to step 6, the locks of all touched partitions from 2 to 4.

    staging          step 1, whether a task sees the driver's PATH, and files of abandoned jobs
    coordinator      steps 2 to 5, and rolling forward
    internal_topics  __transaction_state and __commits, and how they are read and rewritten
    state_records    the format of records in __transaction_state
    history          the format of records in __commits, and reading them
    sequences        the last committed sequence of each transactional id: finds duplicates; step 6
    snapshot         a consistent answer to where partitions start and end
"""
