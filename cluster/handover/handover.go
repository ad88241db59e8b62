// Package handover brings what the nodes keep in memory for a shard to the shard's new
// owner.
//
// The owner of a shard follows from the member list, which the nodes learn one after
// another. For a moment two nodes may each think that they own a shard. The state of the
// shard, however, is in one place only, because a node uses it only after this
// protocol:
//
//  1. The new owner asks every living member for the shard, not only the former owner:
//     a node cannot know which lists the others have followed.
//  2. A member that is asked has released the shard (Yield): it does not use the shard
//     any more, and answers with what it has. It must answer the same again, until a later
//     question acknowledges that the answer arrived. A member that is itself waiting
//     for an answer about the shard says "later": the state may be on its way to it.
//  3. When every member has answered, the new owner has gained the shard. Patience bounds
//     the wait for members that do not answer. What such a member had may be lost, or in use
//     there too; the kind of state decides what that means (Config.Silent).
//
// A kind of state may need several steps: each is a question that all members have
// answered before the next one is asked. A member that does not answer a step within
// Patience is asked nothing more about the shard, and the others are asked the next step.
//
// State in rows, and work that an activation finishes where it began (cluster.Finisher),
// is not handed over.
package handover

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentsvc/cluster"
	"agentsvc/schemas/id"
)

const (
	// Patience is how long a member that does not answer is waited for.
	Patience = time.Second
	// callTimeout bounds one question to one member.
	callTimeout = 250 * time.Millisecond
)

// Node is what Shards need of the cluster (cluster.Node).
type Node interface {
	Member() id.MemberID
	Owner(s id.Shard) id.MemberID
}

// Config is what Shards need.
type Config struct {
	Node Node // nil: this node owns every shard
	// Living are the living members, also those that own nothing while they drain. It
	// must not be older than what Changed was told. nil: this node alone.
	Living func() []id.MemberID
	// Refresh reads Living anew: members that joined since the last read are missing in it.
	// nil: Living is never out of date.
	Refresh func(context.Context) error
	Now     func() time.Time // a clock that never steps
	// Self says that this node is asked too.
	Self  bool
	Steps int
	// Ask asks a member the question of a step and takes what it answers. It returns the
	// shards for which the member said "later".
	Ask func(ctx context.Context, to id.MemberID, step int, shards []id.Shard) (later []id.Shard, err error)
	// Silent, where set, is called with the lock for shards that are here now, and of which
	// a living member did not answer in time.
	Silent func(shards []id.Shard)
	// Dropped, where set, is called with the lock when what was gathered of a shard is void.
	Dropped func(s id.Shard)
}

// Shards are the shards of one kind of state, as one node sees them.
type Shards struct {
	cfg  Config
	stop chan struct{}
	wg   sync.WaitGroup

	news atomic.Uint64 // questions from members that are missing in Living
	seen atomic.Uint64 // how many of these came before the last Refresh began

	mu      *sync.Mutex // guards the fields below; it is the lock of the state itself
	here    [id.Shards]bool
	wanted  map[id.Shard]*want
	asking  bool // a goroutine asks for what is wanted
	stopped bool
}

// want is a shard that is on its way here.
type want struct {
	since    time.Time            // when the asking of this step began
	silent   bool                 // a member did not answer an earlier step in time
	again    bool                 // what was gathered is void: every member is asked again
	answered map[id.MemberID]int  // how many steps each member has answered
	unsure   map[id.MemberID]bool // they were asked, and their answer was not received
}

// New makes Shards of which none is here. mu is the lock that guards the state.
func New(mu *sync.Mutex, cfg Config) *Shards {
	return &Shards{cfg: cfg, mu: mu, stop: make(chan struct{}), wanted: map[id.Shard]*want{}}
}

// Here reports whether the state of s is here. If it is not, the node begins to ask for
// all that it owns. The lock is held.
func (h *Shards) Here(s id.Shard) bool {
	if !h.here[s] && h.wanted[s] == nil {
		for o := range id.Shard(id.Shards) {
			if !h.here[o] && h.owns(o) {
				h.want(o)
			}
		}
	}
	return h.here[s]
}

// Changed asks for the shards that this node gained. The lock is held. A shard that is
// already being gathered is asked for again if no question about it is in flight: another node
// may have owned the shard since the answers.
func (h *Shards) Changed(c cluster.Change) {
	for _, s := range c.Gained {
		if w := h.wanted[s]; w != nil {
			w.again = true
			continue
		}
		h.drop(s)
		h.want(s)
	}
}

// Heard notes that a member has asked for shards. A member that is missing in Living must
// be asked too before an answer counts as complete: it joined since the list was read, and
// may have asked for a shard here before this node did.
func (h *Shards) Heard(from id.MemberID) {
	if h.cfg.Living != nil && !slices.Contains(h.cfg.Living(), from) {
		h.news.Add(1)
	}
}

// Yield releases a shard to the member that asks for it. It returns false if that member
// has to ask again later, because the state may be on its way here. The lock is held.
func (h *Shards) Yield(s id.Shard) bool {
	if w := h.wanted[s]; w != nil {
		if len(w.unsure) > 0 {
			return false
		}
		clear(w.answered)
		w.silent = false
	}
	h.drop(s)
	return true
}

// Stop ends the asking. The lock is held.
func (h *Shards) Stop() {
	if !h.stopped {
		h.stopped = true
		close(h.stop)
	}
}

// Wait waits after Stop until nothing is under way. The lock is not held.
func (h *Shards) Wait() { h.wg.Wait() }

func (h *Shards) drop(s id.Shard) {
	h.here[s] = false
	if h.cfg.Dropped != nil {
		h.cfg.Dropped(s)
	}
}

func (h *Shards) owns(s id.Shard) bool {
	return h.cfg.Node == nil || h.cfg.Node.Owner(s) == h.cfg.Node.Member()
}

// Members are the members that are asked for a shard.
func (h *Shards) Members() []id.MemberID {
	switch {
	case h.cfg.Living == nil && h.cfg.Self:
		return []id.MemberID{h.cfg.Node.Member()}
	case h.cfg.Living == nil:
		return nil
	case h.cfg.Self:
		return h.cfg.Living()
	}
	self := h.cfg.Node.Member()
	return slices.DeleteFunc(slices.Clone(h.cfg.Living()), func(m id.MemberID) bool { return m == self })
}

// want begins to ask for a shard.
func (h *Shards) want(s id.Shard) {
	if h.stopped || h.wanted[s] != nil {
		return
	}
	if len(h.Members()) == 0 && !h.stale() {
		h.here[s] = true
		return
	}
	h.wanted[s] = &want{since: h.cfg.Now(), answered: map[id.MemberID]int{}, unsure: map[id.MemberID]bool{}}
	if !h.asking {
		h.asking = true
		h.wg.Go(h.gather)
	}
}

// question is what one member is asked in a round.
type question struct {
	to   id.MemberID
	step int
}

// gather asks for what is wanted until nothing is.
func (h *Shards) gather() {
	for {
		anew := h.refresh()
		h.mu.Lock()
		if h.stale() && !h.stopped {
			h.mu.Unlock()
			h.pause()
			continue
		}
		if anew { // no member was asked while the list was read, and a new one never was
			now := h.cfg.Now()
			for _, w := range h.wanted {
				w.since = now
			}
		}
		asks := h.round()
		if len(asks) == 0 {
			h.asking = false
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		if !h.ask(asks) {
			h.pause()
		}
	}
}

// round closes what has been answered, and returns the questions for the rest.
func (h *Shards) round() map[question][]id.Shard {
	now, members := h.cfg.Now(), h.Members()
	asks := map[question][]id.Shard{}
	var silent []id.Shard
	for s, w := range h.wanted {
		maps.DeleteFunc(w.unsure, func(m id.MemberID, _ bool) bool { return !slices.Contains(members, m) })
		owns := h.owns(s)
		if w.again && owns {
			h.drop(s)
			*w = want{since: now, answered: map[id.MemberID]int{}, unsure: w.unsure}
		}
		step, open := w.open(members, h.cfg.Steps)
		if !owns { // the new owner takes from here what has come; what may be on its way has to come first
			open = slices.DeleteFunc(open, func(m id.MemberID) bool { return !w.unsure[m] })
		}
		if !h.stopped && owns && len(open) > 0 && step < h.cfg.Steps-1 && now.Sub(w.since) >= Patience {
			for _, m := range open { // what the others have is asked for without these
				w.answered[m] = h.cfg.Steps
				delete(w.unsure, m)
			}
			w.since, w.silent = now, true
			step, open = w.open(members, h.cfg.Steps)
		}
		switch {
		case !h.stopped && len(open) > 0 && now.Sub(w.since) < Patience:
			for _, m := range open {
				w.unsure[m] = true
				asks[question{m, step}] = append(asks[question{m, step}], s)
			}
			continue
		case !h.stopped && owns:
			h.here[s] = true
			if len(open) > 0 || w.silent {
				silent = append(silent, s)
			}
		default:
			h.drop(s)
		}
		delete(h.wanted, s)
	}
	if len(silent) > 0 && h.cfg.Silent != nil {
		h.cfg.Silent(silent)
	}
	return asks
}

// open returns the step that is next, and the members that have not answered it.
func (w *want) open(members []id.MemberID, steps int) (step int, open []id.MemberID) {
	step = steps
	for _, m := range members {
		switch n := w.answered[m]; {
		case n < step:
			step, open = n, []id.MemberID{m}
		case n == step && n < steps:
			open = append(open, m)
		}
	}
	return step, open
}

// ask asks the questions of a round in parallel. It reports whether every member has
// answered for every shard.
func (h *Shards) ask(asks map[question][]id.Shard) bool {
	var wg sync.WaitGroup
	var open atomic.Bool
	for q, shards := range asks {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			defer cancel()
			later, err := h.cfg.Ask(ctx, q.to, q.step, shards)
			if err != nil || len(later) > 0 {
				open.Store(true)
			}
			if err != nil {
				return
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, s := range shards {
				w := h.wanted[s]
				delete(w.unsure, q.to)
				if !slices.Contains(later, s) {
					w.answered[q.to] = q.step + 1
				}
			}
		})
	}
	wg.Wait()
	return !open.Load()
}

// refresh reads the member list anew if it is stale, and reports whether it did. The list
// stays stale until the read has ended.
func (h *Shards) refresh() bool {
	if !h.stale() {
		return false
	}
	news := h.news.Load() // a later question may come too late for this read
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if h.cfg.Refresh(ctx) != nil {
		return false
	}
	h.seen.Store(news)
	return true
}

// stale reports whether the list has to be read before it is relied on.
func (h *Shards) stale() bool { return h.cfg.Refresh != nil && h.news.Load() != h.seen.Load() }

// pause waits for a random time, so that two nodes that want the same shard do not keep
// asking each other at the same moment.
func (h *Shards) pause() {
	pause := time.NewTimer(time.Duration(5+rand.IntN(20)) * time.Millisecond)
	select {
	case <-pause.C:
	case <-h.stop:
		pause.Stop()
	}
}
