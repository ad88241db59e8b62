//go:build storm

package blackbox

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestClusterPlantedFaults sees to it that the laws of the storms find what they
// are there for.
func TestClusterPlantedFaults(t *testing.T) {
	b := newBed(t, 1, 30*time.Second)
	b.start()
	crowd := crowd{talkers: 1, clerks: 2, tellers: 2, revokers: 1, stalled: 1, visitors: 2}
	try := func(t *testing.T, law string, x *lie, does func(context.Context, *shaker)) []string {
		book := newBook()
		l := newLoad(t, b, book)
		if x != nil {
			x = &lie{ask: x.ask, answer: x.answer, tell: x.tell, load: l} // it remembers nothing of a time before
			l.c.HTTP.Transport.(*spread).lie = x
		}
		if slices.Contains(hookLaws, law) || x == nil {
			l.subscribes(t, x)
		}
		if slices.Contains(flowLaws, law) || x == nil {
			l.ran = l.flows.tellFlows(within(t, time.Minute), 1, len(flowStories))
			l.flows.judgeFlows(t, l.ran)
			if x != nil {
				return book.breaches(law)
			}
			book.notVoid(t, flowLaws...)
		}
		s := &shaker{load: l}
		l.quiet = true
		crowd := crowd
		// What takes its time is there for its law alone.
		if law == lawRoom || x == nil {
			crowd.fillers = 1
		}
		if slices.Contains(bucketLaws, law) || x == nil {
			crowd.drainers = 1
		}
		l.run(t, time.Minute, crowd, func(ctx context.Context) {
			if does != nil {
				does(ctx, s)
			}
			for i := 0; i < 20 && len(book.breaches(law)) == 0 && ctx.Err() == nil; i++ {
				if !pauseFor(ctx, 100*time.Millisecond) {
					return
				}
			}
			if crowd.drainers > 0 {
				eventually(t, ctx, askedAgain, func() bool { return l.hasMet(askedAgain) })
			}
		})
		r := newRulings()
		f := l.find(t)
		f.hold(book, r)
		book.outagesHold()
		book.bucketsHold()
		book.drainsHold()
		book.silencesHold(f.calls)
		told := l.audit(t, f)
		if x == nil {
			book.report(t)
			book.notVoid(t, slices.Concat(bucketLaws, hookLaws)...)
			told.weighed(t, 0)
			r.report(t)
		}
		return append(book.breaches(law), r.broken[law]...)
	}
	t.Run("each", func(t *testing.T) {
		t.Run("none", func(t *testing.T) {
			t.Parallel()
			try(t, "", nil, nil)
		})
		for i := range wrong {
			w := &wrong[i]
			t.Run(w.name, func(t *testing.T) {
				t.Parallel()
				found := try(t, w.law, &w.lie, w.does)
				if len(found) == 0 {
					t.Fatalf("the law %q has not found it", w.law)
				}
				t.Logf("%s: %s", w.law, found[0][:min(len(found[0]), 300)])
			})
		}
	})
	// A process that ends by itself.
	m := b.nodes[0]
	if err := m.signal(syscall.SIGKILL, time.Minute); err != nil {
		t.Fatal(err)
	}
	eventually(t, within(t, 10*time.Second), "the law of lives finds a process that ended by itself", func() bool { return len(b.book.breaches(lawLives)) > 0 })
	// What is measured.
	before := rest{goroutines: 100, descriptors: 50, resident: 50 << 20, connections: 20}
	for _, grown := range []rest{{goroutines: 200}, {descriptors: 100}, {resident: 300 << 20}, {connections: 60}} {
		if grown.no(before) == "" {
			t.Errorf("%s after %s is not found", grown, before)
		}
	}
	if why := before.no(before); why != "" {
		t.Error(why)
	}
	for _, late := range []termination{{took: drainTime + 11*time.Second}, {code: 1}, {err: fmt.Errorf("it goes on")}} {
		if late.ok() {
			t.Errorf("%+v is not found", late)
		}
	}
	// How long after Postgres a node is ready that takes 300 ms.
	for _, c := range []struct {
		back  time.Duration
		broke bool
	}{{0, false}, {9900 * time.Millisecond, true}} {
		late := &member{node: b.nodes[0].node, name: "late", lives: []*life{{}}}
		l := &load{bed: &bed{t: t, nodes: []*member{late}}, scene: &scene{node: b.nodes[0].node}, book: newBook()}
		time.AfterFunc(300*time.Millisecond, func() { late.healthy.Store(true) })
		(&shaker{load: l}).heal(within(t, 10*time.Second), time.Now().Add(-c.back))
		if found := l.book.breaches(lawHeals); (len(found) > 0) != c.broke || !l.book.ruled(lawHeals) {
			t.Errorf("Postgres came back %s ago: %v", c.back, found)
		}
	}
}
