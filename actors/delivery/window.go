package delivery

import (
	"time"

	"agentsvc/persistence/outbox"
)

// Most limits the attempts in flight of one endpoint.
const Most = 32

// Pause after a failed turn, or an attempt that was not sent; it doubles each time.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// window tracks an endpoint's work in flight, without I/O or clock.
type window struct {
	inFlight int             // attempts
	ended    []outbox.Result // for the next turn
	asked    []outbox.Result // in the turn in flight
	asking   bool            // a turn is in flight
	woken    bool            // something may be due that no turn has checked
	next     time.Time       // when the next delivery is due, by the last turn; zero: nothing is pending
	failures int             // in a row
	until    time.Time       // no turn before this time; zero: no pause
}

// wants reports whether to request a turn now. claims means that attempts may begin: the node
// holds its lease.
func (w *window) wants(claims bool) bool {
	return !w.asking && w.until.IsZero() && (len(w.ended) > 0 || claims && w.woken && w.inFlight < Most)
}

// room returns how many attempts may begin.
func (w *window) room() int { return Most - w.inFlight }

// ask begins a turn and returns the results that it makes durable.
func (w *window) ask() []outbox.Result {
	w.asked, w.ended = w.ended, nil
	w.asking, w.woken = true, false
	return w.asked
}

// answered ends a turn that claimed c. If its Next has passed, more is due and is claimed as
// soon as there is room.
func (w *window) answered(c outbox.Claimed) {
	given := 0
	for _, r := range w.asked {
		if r.Unsent {
			given++
		}
	}
	if given == 0 {
		w.failures = 0
	}
	w.asked, w.asking = nil, false
	w.inFlight += len(c.Attempts)
	w.next = c.Next
}

// failed ends a failed turn: its results go into the next one, after a pause.
func (w *window) failed(now time.Time) {
	w.ended = append(w.asked, w.ended...)
	w.asked, w.asking, w.woken = nil, false, true
	w.pause(now)
}

// end records the result of an attempt.
func (w *window) end(r outbox.Result, now time.Time) {
	w.inFlight--
	w.ended = append(w.ended, r)
	if r.Unsent {
		w.woken = true // it is due again
		w.pause(now)
	}
}

func (w *window) pause(now time.Time) {
	if w.until.IsZero() {
		w.until = now.Add(min(firstPause<<min(w.failures, 10), lastPause))
		w.failures++
	}
}

// rang checks the clock: a pause may be over, or a delivery due.
func (w *window) rang(now time.Time) {
	if !w.until.IsZero() && !w.until.After(now) {
		w.until = time.Time{}
	}
	if !w.next.IsZero() && !w.next.After(now) {
		w.next, w.woken = time.Time{}, true
	}
}

// alarm returns when to check the clock next; zero means that only messages matter.
func (w *window) alarm() time.Time {
	switch {
	case w.asking:
		return time.Time{}
	case !w.until.IsZero():
		return w.until
	}
	return w.next
}

// empty reports whether nothing is pending, in flight or unsettled.
func (w *window) empty() bool {
	return !w.busy() && !w.woken && w.next.IsZero() && w.until.IsZero()
}

// busy reports whether a turn or an attempt is in flight, or a result unsettled.
func (w *window) busy() bool { return w.asking || w.inFlight > 0 || len(w.ended) > 0 }
