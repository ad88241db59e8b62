package sync

import (
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/schedule"
)

// State is a source's row, and what an activation remembers.
type State struct {
	Missing bool // there is no row, or the source is deleted
	Base    id.KnowledgeBaseID
	Enabled bool
	Status  lifecycle.SourceStatus
	Sync    int64 // the number of the last sync
	// Due is when the next scheduled sync is due; zero: there is none.
	Due time.Time
	// Times are the due times; nil: none, or they cannot be read.
	Times *schedule.Schedule
	// Try counts the walks of this activation. It is not stored.
	Try int
	// Idle is that of the last Again. It is not stored.
	Idle int
	// Fresh: the row was just claimed, and no message was decided since. It is not stored.
	Fresh bool
}

// walks reports whether a sync is queued or on its way.
func (s State) walks() bool {
	return !s.Missing && s.Enabled && (s.Status == lifecycle.SourceQueued || s.Status == lifecycle.SourceSyncing)
}

// Facts.
type (
	// Claimed says that this activation owns the row.
	Claimed struct{}
	// Queued says that a due time has queued a sync.
	Queued struct{}
	// Moved says that a due time passed without a sync of its own.
	Moved struct{}
	// Aligned says that the timer has to agree with the row.
	Aligned struct{}
	// Finished says that a sync has ended.
	Finished struct {
		Ended
		At time.Time
	}
)
