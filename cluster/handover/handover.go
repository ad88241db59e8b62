// Package handover holds what nodes share that ask the other members for what they
// have of a shard: a member list that notices when it is out of date, and the times
// that bound the questions.
package handover

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"agentsvc/schemas/id"
)

const (
	// CallTimeout bounds one question to one member.
	CallTimeout = 250 * time.Millisecond
	// Patience is how long a member that does not answer is waited for.
	Patience = time.Second
)

// List is the node's list of the living members. It is as old as its last read. A
// member that joined since is missing in it, but may own shards already and may have
// asked here first. It must be asked too before an answer counts as complete.
type List struct {
	Living func() []id.MemberID            // nil: this node alone
	Look   func(ctx context.Context) error // reads the list anew; nil: Living is never out of date

	news atomic.Uint64 // questions from members that are not in the list
	seen atomic.Uint64 // how many of these came before the last read began
}

// Heard notes that a member has asked this node.
func (l *List) Heard(from id.MemberID) {
	if l.Living != nil && !slices.Contains(l.Living(), from) {
		l.news.Add(1)
	}
}

// Read reads the list anew if it is stale, and reports whether it did. The list stays
// stale until the read has ended. Only one goroutine may call it at a time.
func (l *List) Read() bool {
	if !l.Stale() {
		return false
	}
	news := l.news.Load() // a later question may come too late for this read
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if l.Look(ctx) != nil {
		return false
	}
	l.seen.Store(news)
	return true
}

// Stale reports whether the list has to be read before it is relied on.
func (l *List) Stale() bool { return l.Look != nil && l.news.Load() != l.seen.Load() }

// Missing returns the members that have not answered.
func Missing(members []id.MemberID, answered map[id.MemberID]bool) []id.MemberID {
	return slices.DeleteFunc(slices.Clone(members), func(m id.MemberID) bool { return answered[m] })
}

// Pause waits for a random time, so that two nodes that want the same shard do not
// keep asking each other at the same moment. It returns early when stop is closed.
func Pause(stop <-chan struct{}) {
	pause := time.NewTimer(time.Duration(5+rand.IntN(20)) * time.Millisecond)
	select {
	case <-pause.C:
	case <-stop:
		pause.Stop()
	}
}
