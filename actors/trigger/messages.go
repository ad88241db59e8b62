package trigger

import "time"

// Results of Start.
type (
	// Started says that the run of Due was started, now or before, or that it never will
	// be: Why is the reason.
	Started struct {
		Due time.Time
		Why string
	}
	// Failed says that it is not known whether the run was started.
	Failed struct{}
)
