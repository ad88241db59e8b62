package limit

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"agentsvc/schemas/id"
)

// list is the node's list of the members that live, for those who ask all of them for
// what a shard has. It is as old as its last look: who has joined since is not in it,
// may own shards already and have asked here first, and must be asked too before
// anything is taken for complete.
type list struct {
	living func() []id.MemberID            // nil: this node alone
	look   func(ctx context.Context) error // nil: living is never old
	news   atomic.Uint64                   // how often somebody has asked who is not in it
	seen   atomic.Uint64                   // how many of these the last look came after
}

// heard says that a member has asked for what is here.
func (l *list) heard(from id.MemberID) {
	if l.living != nil && !slices.Contains(l.living(), from) {
		l.news.Add(1)
	}
}

// read reads the list anew if it is stale, and reports whether it did. The list stays
// stale until it is read, also for who asks meanwhile. One reads at a time.
func (l *list) read() bool {
	if !l.isStale() {
		return false
	}
	news := l.news.Load() // what comes from now on may be too late for this look
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if l.look(ctx) != nil {
		return false
	}
	l.seen.Store(news)
	return true
}

// isStale reports whether it has to be read before it is relied on.
func (l *list) isStale() bool { return l.look != nil && l.news.Load() != l.seen.Load() }

// uneven pauses so that two nodes that want the same do not ask each other in step.
func uneven(stop <-chan struct{}) {
	pause := time.NewTimer(time.Duration(5+rand.IntN(20)) * time.Millisecond)
	select {
	case <-pause.C:
	case <-stop:
		pause.Stop()
	}
}
