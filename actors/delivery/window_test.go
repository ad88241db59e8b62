package delivery

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"agentsvc/persistence/outbox"
	"agentsvc/schemas/id"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// Over any history of wakes, turns that succeed or fail, attempts that end or are given back,
// and a running clock: no result is lost or settled by two successful turns, attempts in
// flight and unsettled results stay within their bound, and a window with work left always
// has an alarm.
func TestLawsOfTheWindow(t *testing.T) {
	failures, gaveBack, full, rested := 0, 0, 0, 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var w window
		now, claims, wanted := noon, true, 0
		var flying []id.DeliveryID
		produced, settled := map[id.DeliveryID]bool{}, map[id.DeliveryID]int{}
		for range 400 {
			switch r.IntN(8) {
			case 0:
				w.woken = true
			case 1, 2: // the turn in flight ends
				if !w.asking {
					break
				}
				if r.IntN(4) == 0 {
					failures++
					w.failed(now)
					break
				}
				for _, res := range w.asked {
					settled[res.Delivery]++
				}
				var c outbox.Claimed
				for range r.IntN(wanted + 1) {
					d := id.DeliveryID{UUID: id.NewAnywhere()}
					c.Attempts = append(c.Attempts, outbox.Attempt{Delivery: d, N: 1})
					flying = append(flying, d)
				}
				if r.IntN(2) == 0 {
					c.Next = now.Add(time.Duration(r.IntN(2000)-1000) * time.Millisecond)
				}
				w.answered(c)
			case 3, 4, 5: // an attempt ends
				if len(flying) == 0 {
					break
				}
				i := r.IntN(len(flying))
				res := outbox.Result{Delivery: flying[i], N: 1, Unsent: r.IntN(10) == 0}
				if res.Unsent {
					gaveBack++
				}
				flying = slices.Delete(flying, i, i+1)
				produced[res.Delivery] = true
				w.end(res, now)
			case 6:
				now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
				w.rang(now)
			case 7:
				claims = r.IntN(4) > 0
			}
			if w.wants(claims) && r.IntN(3) > 0 {
				if wanted = 0; claims {
					wanted = w.room()
				}
				if wanted > 0 || len(w.ended) > 0 {
					w.ask()
				}
			}

			if w.inFlight != len(flying) || w.inFlight < 0 || w.inFlight > Most {
				t.Fatalf("seed %d: %d under way, it says %d", seed, len(flying), w.inFlight)
			}
			if n := w.inFlight + len(w.ended) + len(w.asked); n > Most {
				t.Fatalf("seed %d: %d are under way or unsettled", seed, n)
			}
			if w.inFlight == Most {
				full++
			}
			if !w.busy() && !w.empty() && !w.wants(true) && w.alarm().IsZero() {
				t.Fatalf("seed %d: it waits for nothing: %+v", seed, w)
			}
			if len(w.ended) > 0 && !w.asking && !w.wants(false) && w.alarm().IsZero() {
				t.Fatalf("seed %d: results wait for nothing: %+v", seed, w)
			}
			if w.empty() {
				rested++
			}
			open := len(w.ended) + len(w.asked)
			if done := len(settled); done+open != len(produced) {
				t.Fatalf("seed %d: of %d results %d are settled and %d open", seed, len(produced), done, open)
			}
		}
		for d, n := range settled {
			if n != 1 || !produced[d] {
				t.Fatalf("seed %d: a result was settled %d times", seed, n)
			}
		}
	}
	if failures < 1000 || gaveBack < 1000 || full < 100 || rested < 1000 {
		t.Errorf("%d failures, %d given back, %d times full, %d times at rest: void", failures, gaveBack, full, rested)
	}
}

// Turns that fail one after the other are asked ever less often, until one does not.
func TestPausesOfTheWindow(t *testing.T) {
	var w window
	now := noon
	for i, want := range []time.Duration{50, 100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		w.woken = true
		w.ask()
		w.failed(now)
		if got := w.until.Sub(now); got != want*time.Millisecond {
			t.Fatalf("pause %d is %v", i, got)
		}
		if w.wants(true) {
			t.Fatal("it does not pause")
		}
		now = w.alarm()
		if w.rang(now); !w.wants(true) {
			t.Fatal("it does not go on")
		}
	}
	w.ask()
	w.answered(outbox.Claimed{})
	w.woken = true
	w.ask()
	w.failed(now)
	if got := w.until.Sub(now); got != firstPause {
		t.Errorf("after a turn that was answered: %v", got)
	}
}

// Places of a node: an endpoint takes at most a quarter of the free ones, and never more than
// are free.
func TestPlaces(t *testing.T) {
	h := &hosting{Config: Config{Places: 64}}
	for i, c := range []struct{ want, got int }{
		{32, 16}, {32, 12}, {3, 3}, {32, 8}, {32, 6}, {32, 4}, {32, 3}, {32, 3}, {32, 2}, {32, 1}, {32, 1}, {32, 1}, {32, 1}, {32, 0}, {0, 0},
	} {
		if got := h.take(c.want); got != c.got {
			t.Fatalf("row %d: %d of %d, %d taken", i, got, c.want, h.taken.Load())
		}
	}
	h.giveBack(-100) // bodies that were larger than their places
	if got := h.take(32); got != 0 {
		t.Errorf("%d places, and none is free", got)
	}
}
