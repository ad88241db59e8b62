// Package slot limits how many runs of a tenant are running at a time
// (SVC_RUN_CONCURRENCY), over all nodes of the cluster.
//
// The slots of a tenant are one actor, in the memory of the node that owns the tenant's
// shard. Each node has a Queue, which tells the slots what its runs want.
//
//	run ──► Queue ──AcquireSlot, TakeSlot, ReleaseSlot, Wishes──► slots ──SlotGranted──► run
//
// The oldest waiting run is served first. A run that waits for an approval has no slot.
// When it goes on it is counted at once and does not wait, so for a while more runs than
// the limit may be running.
//
// Moves. Nothing is handed over: the slots read from Postgres which runs are running. If
// the member list has changed lately, they read twice, half a second apart, before they
// grant: runs that the former owner granted are running by then, or ask again. A Queue repeats
// its wishes until it knows that they were heard, and at once when the members change.
//
// Order: slots serve their messages in the order of the mailbox. Loss: slots whose owner
// dies may grant a slot again that was granted in the last half second. Limits: one Wishes
// names at most 1,024 runs. Slots leave memory ten seconds after the last use.
package slot
