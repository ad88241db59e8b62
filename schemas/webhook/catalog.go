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

// Catalog are the types that an endpoint may name, in the order they are shown.
func Catalog() []Type {
	return []Type{RunCompleted, RunFailed, ApprovalRequested, ApprovalDecided, ApprovalEscalated, SourceSynced, SourceFailed,
		BrowserRunFinished, Test, All}
}

// MostTypes is how many types an endpoint names at most.
const MostTypes = 16

// Check says what is wrong with the types that an endpoint names; "" is nothing.
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

// Hears reports whether an endpoint that names types hears of events of type t. A
// test is for the endpoint that was asked to send it, whatever it names.
func Hears(types []Type, t Type) bool {
	return t == Test || slices.Contains(types, t) || slices.Contains(types, All)
}

// Attempts is how often a delivery is tried.
const Attempts = 5

// FirstPause is the pause after the first failed attempt, unless the deployment has
// another; each further one doubles it.
const FirstPause = 5 * time.Second

// Pause is how long after failed attempt n, counted from 1, the next one comes: 5,
// 10, 20 and 40 s where first is FirstPause. ok is false where there is no next one.
func Pause(first time.Duration, n int) (d time.Duration, ok bool) {
	if n < 1 || n >= Attempts {
		return 0, false
	}
	return first << (n - 1), true
}
