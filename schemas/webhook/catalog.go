package webhook

import (
	"fmt"
	"slices"
	"time"
)

// Type is the type of an event.
type Type string

// The catalog (open-parts.md, Webhooks). All stands for every type.
const (
	RunCompleted       Type = "run.completed"
	RunFailed          Type = "run.failed"
	ApprovalRequested  Type = "approval.requested"
	ApprovalDecided    Type = "approval.decided"
	ApprovalEscalated  Type = "approval.escalated"
	SourceSynced       Type = "kb.source.synced"
	SourceFailed       Type = "kb.source.failed"
	BrowserRunFinished Type = "browser_skill.run.finished"
	Test               Type = "webhook.test"
	All                Type = "*"
)

// Catalog returns the types that an endpoint may subscribe to, in display order.
func Catalog() []Type {
	return []Type{RunCompleted, RunFailed, ApprovalRequested, ApprovalDecided, ApprovalEscalated, SourceSynced, SourceFailed,
		BrowserRunFinished, Test, All}
}

// MostTypes is how many types an endpoint may name.
const MostTypes = 16

// Check validates the types that an endpoint names; "" means valid.
func Check(types []Type) string {
	switch {
	case len(types) == 0:
		return "must name at least one event type, or *"
	case len(types) > MostTypes:
		return fmt.Sprintf("must name at most %d event types", MostTypes)
	}
	for i, t := range types {
		switch {
		case !slices.Contains(Catalog(), t):
			return fmt.Sprintf("has an unknown event type: %q", t)
		case t == All && len(types) > 1:
			return "must hold nothing beside *"
		case slices.Contains(types[:i], t):
			return fmt.Sprintf("names %q twice", t)
		}
	}
	return ""
}

// Hears reports whether an endpoint with these types gets events of type t. A test goes only
// to the endpoint for which it was requested, whatever its types.
func Hears(types []Type, t Type) bool {
	return t == Test || slices.Contains(types, t) || slices.Contains(types, All)
}

// Attempts is the maximum number of attempts of a delivery.
const Attempts = 5

// FirstPause is the default pause after the first failed attempt; each further one doubles
// it.
const FirstPause = 5 * time.Second

// Pause returns the time between failed attempt n, counted from 1, and the next one: 5, 10,
// 20 and 40 s if first is FirstPause. ok is false if there is no next attempt.
func Pause(first time.Duration, n int) (d time.Duration, ok bool) {
	if n < 1 || n >= Attempts {
		return 0, false
	}
	return first << (n - 1), true
}
