package workflow

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"agentsvc/schemas/flow"
	"agentsvc/schemas/id"
)

// Of a thousand runs that grow at once, those of one tenant have its part of the places, another
// tenant's run has one at once, and all of them are served in the end.
func TestLargeRunsHaveAPartOfTheNode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLarge()
		busy, quiet := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
		var inside, most, served atomic.Int64
		open := make(chan struct{})
		var wg sync.WaitGroup
		for range 1_000 {
			run := id.RunID{UUID: id.NewAnywhere()}
			wg.Go(func() {
				if !l.enter(t.Context(), busy, run, flow.MaxData) {
					t.Error("a run has no place")
					return
				}
				most.Store(max(most.Load(), inside.Add(1)))
				<-open
				inside.Add(-1)
				served.Add(1)
				l.left(run)
			})
		}
		synctest.Wait()
		if n := inside.Load(); n != walkEach {
			t.Errorf("%d walks of one tenant are under way", n)
		}
		if p := l.held; len(p) != walkEach {
			t.Errorf("%d runs have places", len(p))
		}
		other := id.RunID{UUID: id.NewAnywhere()}
		if !l.enter(t.Context(), quiet, other, flow.MaxData) {
			t.Error("the quiet tenant has no place")
		}
		l.left(other)
		close(open)
		wg.Wait()
		if most.Load() > walkEach || served.Load() != 1_000 {
			t.Errorf("%d at a time, %d served", most.Load(), served.Load())
		}
		l.free(t)
	})
}

// free fails the test unless all places are free.
func (l *large) free(t *testing.T) {
	t.Helper()
	who := id.TenantID{UUID: id.NewAnywhere()}
	for range largeEach {
		if !l.runs.Try(who) {
			t.Error("a place of a run is lost")
		}
	}
	if !l.walks.Try(who) || len(l.held) > 0 {
		t.Errorf("a place of a walk is lost: %v", l.held)
	}
}

// A run that is read without a place is not kept, and from then on not even read.
func TestLargeRunsAreReadWithAPlace(t *testing.T) {
	t.Parallel()
	l := newLarge()
	who := id.TenantID{UUID: id.NewAnywhere()}
	var runs []id.RunID
	for range largeEach {
		run := id.RunID{UUID: id.NewAnywhere()}
		for range 2 { // a run has its place once
			if !l.load(who, run) {
				t.Fatal("there is no place for it")
			}
		}
		runs = append(runs, run)
	}
	more := id.RunID{UUID: id.NewAnywhere()}
	if l.load(who, more) {
		t.Error("one more has a place")
	}
	if l.isKnown(more) || l.crowded(more) == nil || !l.isKnown(more) {
		t.Error("it is not known afterwards")
	}
	l.left(runs[0])
	if !l.load(who, more) {
		t.Error("it has no place where one has left")
	}
	for _, run := range append(runs, more) {
		l.left(run)
	}
	l.free(t)
}

// Places that come when the activation has ended are given back, whatever comes first.
func TestNoPlaceOfARunIsLost(t *testing.T) {
	t.Parallel()
	l := newLarge()
	who := id.TenantID{UUID: id.NewAnywhere()}
	var wg sync.WaitGroup
	for i := range 200 {
		run := id.RunID{UUID: id.NewAnywhere()}
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			entered := make(chan bool)
			go func() { entered <- l.enter(ctx, who, run, flow.MaxData) }()
			if i%2 == 0 {
				cancel()
				l.left(run)
				<-entered
				return
			}
			if <-entered {
				l.walked(&State{ID: run})
			}
			cancel()
			l.left(run)
		})
	}
	wg.Wait()
	l.free(t)
}
