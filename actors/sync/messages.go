package sync

// Results of Walk.
type (
	// Ended says how the sync ended.
	Ended struct {
		OK        bool
		Error     string // in plain words; of a sync that succeeded: about single files
		Documents int    // of the source now
		Delta     string // where the next sync begins
	}
	// Lost says that the walk does not own the row any more.
	Lost struct{}
	// Again says that the walk has to go on: storage or the node's lease failed for a moment, or the vendor asked to wait.
	Again struct {
		Idle int // walks that no step brought on, one after the other, while the store of files did not serve or the vendor asked to wait
	}
)
