package workflow

import (
	"context"
	"sync"
	"time"

	"agentsvc/schemas/id"
	"agentsvc/schemas/problem"
	"agentsvc/schemas/turn"
)

// Definitions are written by strangers, and a template that doubles its variable makes a run of
// flow.MaxData of a request of a few bytes. So what large runs take of a node is bounded, and a tenant
// has a part of it: memory by places for large runs, and the writer by places for walks whose
// commit is large. Runs wait for both in turn, by tenant.

const (
	// largeRun is the size from which a run needs a place to be in memory.
	largeRun    = 1 << 20
	largePlaces = 32 // on a node
	largeEach   = 16 // of a tenant

	// largeWalk is the size from which a walk needs a place until it is committed.
	largeWalk  = 1 << 18
	walkPlaces = 2
	walkEach   = 1

	// maxKnown bounds the runs that a node knows to be large.
	maxKnown = 100_000
)

// large gives out the places of a node.
type large struct {
	runs, walks *turn.Places

	mu    sync.Mutex // guards the fields below
	held  map[id.RunID]*places
	known map[id.RunID]struct{} // runs that are large, and may be loaded again
}

// places are those that one run has.
type places struct {
	tenant    id.TenantID
	run, walk bool
}

func newLarge() *large {
	return &large{runs: turn.New(largePlaces, largeEach), walks: turn.New(walkPlaces, walkEach), held: map[id.RunID]*places{}, known: map[id.RunID]struct{}{}}
}

// enter waits for the places that a walk needs which leaves the run with that size. It reports false if
// ctx, which ends with the activation, ends before. walked and left give them back.
func (l *large) enter(ctx context.Context, t id.TenantID, run id.RunID, size int) bool {
	has := l.has(run)
	need := places{tenant: t, run: size >= largeRun && !has.run, walk: !has.walk}
	if need.run && l.runs.Take(ctx, t) != nil {
		return false
	}
	if need.walk && l.walks.Take(ctx, t) != nil {
		if need.run {
			l.runs.Give(t)
		}
		return false
	}
	return l.keep(ctx, run, need)
}

// load takes a place for a run that is read. It reports false if there is none: the caller then
// keeps nothing of the run.
func (l *large) load(t id.TenantID, run id.RunID) bool {
	if l.has(run).run {
		return true
	}
	return l.runs.Try(t) && l.keep(context.Background(), run, places{tenant: t, run: true})
}

func (l *large) has(run id.RunID) places {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.held[run]; p != nil {
		return *p
	}
	return places{}
}

// keep notes the places of a run. If its activation has ended, left was called before and will not be
// called again: the places are given back.
func (l *large) keep(ctx context.Context, run id.RunID, more places) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.held[run]
	if p == nil {
		p = &places{tenant: more.tenant}
	}
	switch {
	case ctx.Err() != nil, more.run && p.run, more.walk && p.walk:
		l.give(&more)
		return ctx.Err() == nil
	}
	p.run, p.walk = p.run || more.run, p.walk || more.walk
	l.held[run] = p
	return true
}

func (l *large) give(p *places) {
	if p.walk {
		l.walks.Give(p.tenant)
	}
	if p.run {
		l.runs.Give(p.tenant)
	}
}

// walked gives back the place of a walk that is committed, and notes whether the run is large.
func (l *large) walked(s *State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.held[s.ID]; p != nil && p.walk {
		l.give(&places{tenant: p.tenant, walk: true})
		p.walk = false
	}
	switch {
	case s.Status.Terminal():
		delete(l.known, s.ID)
	case s.large():
		l.note(s.ID)
	}
}

// note remembers a large run. Any other one makes room for it: a run that is not known is read once
// without a place.
func (l *large) note(run id.RunID) {
	for old := range l.known {
		if len(l.known) < maxKnown {
			break
		}
		delete(l.known, old)
	}
	l.known[run] = struct{}{}
}

// isKnown reports whether a run was large when it was last in memory.
func (l *large) isKnown(run id.RunID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.known[run]
	return known
}

// crowded notes a run for which there is no place, and returns the answer to its askers. Messages that
// were told are dropped: what they tell is in rows, and the sweep tells it again.
func (l *large) crowded(run id.RunID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(run)
	return problem.Unavailable("The node has too many large runs at work.", time.Second)
}

// left gives back all places of a run whose activation has ended.
func (l *large) left(run id.RunID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.held[run]; p != nil {
		l.give(p)
		delete(l.held, run)
	}
}

// large reports whether the run needs a place.
func (s *State) large() bool { return !s.Status.Terminal() && s.Flow.Size() >= largeRun }

// size returns how much a walk adds to the run's rows.
func (m *Walked) size() (n int) {
	for i := range m.Parts {
		n += len(m.Parts[i].End.Shown)
		for j := range m.Parts[i].Facts {
			f := &m.Parts[i].Facts[j]
			n += len(f.Input) + len(f.Output.Text) + len(f.Output.JSON) + len(f.Shown)
		}
	}
	if m.taken() < len(m.Parts) { // the step of the end that failed shows it
		out := &m.Parts[len(m.Parts)-1].End.Output
		n += len(out.Text) + len(out.JSON)
	}
	return n + len(m.Output)
}
