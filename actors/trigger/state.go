package trigger

import (
	"time"

	"agentsvc/schemas/schedule"
)

// State is the schedule of a trigger's row and the firing under way.
type State struct {
	Missing bool // there is no row
	// Due is the next due time; zero: none, the trigger is a hook or paused.
	Due time.Time
	// Times are the due times; nil: none, or they cannot be read.
	Times *schedule.Schedule
	// Firing is when this activation began to start the run of Due; zero: it has not. It
	// is not stored.
	Firing time.Time
}

// Facts.
type (
	// Moved says that Due is over. Why is empty if its run was started at Fired, else the
	// reason for which it cannot be started.
	Moved struct {
		Due, Fired time.Time
		Why        string
	}
	// Aligned says that the timer has to agree with the row.
	Aligned struct{}
)
