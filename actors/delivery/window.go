package delivery

import (
	"time"

	"agentsvc/persistence/outbox"
)

// Most is how many attempts one endpoint has under way at a time.
const Most = 32

// The pause after a turn that failed, or an attempt that was not sent; it doubles.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// window is what an endpoint has under way: bookkeeping without I/O or clock.
type window struct {
	inFlight int             // attempts
	ended    []outbox.Result // for the next turn
	asked    []outbox.Result // in the turn under way
	asking   bool            // a turn is under way
	woken    bool            // something may be due that no turn has looked for
	next     time.Time       // when something is due, as the last turn said; zero: nothing is pending
	failures int             // in a row
	until    time.Time       // no turn before; zero: there is no pause
}

// wants reports whether a turn is to be asked now. claims says that attempts may
// begin: the node has its lease, and places.
func (w *window) wants(claims bool) bool {
	return !w.asking && w.until.IsZero() && (len(w.ended) > 0 || claims && w.woken && w.inFlight < Most)
}

// room is how many attempts may begin.
func (w *window) room() int { return Most - w.inFlight }

// ask begins a turn: these are the results that it makes durable.
func (w *window) ask() []outbox.Result {
	w.asked, w.ended = w.ended, nil
	w.asking, w.woken = true, false
	return w.asked
}

// answered ends a turn that got the attempts of c. Where its Next has passed there is
// more, which is looked for as soon as there is room.
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

// failed ends a turn that failed: its results go into the next one, after a pause.
func (w *window) failed(now time.Time) {
	w.ended = append(w.asked, w.ended...)
	w.asked, w.asking, w.woken = nil, false, true
	w.pause(now)
}

// end takes the result of an attempt.
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

// rang looks at the clock: a pause may be over, something may be due.
func (w *window) rang(now time.Time) {
	if !w.until.IsZero() && !w.until.After(now) {
		w.until = time.Time{}
	}
	if !w.next.IsZero() && !w.next.After(now) {
		w.next, w.woken = time.Time{}, true
	}
}

// alarm is when to look at the clock next; zero: there is nothing to wait for but
// messages.
func (w *window) alarm() time.Time {
	switch {
	case w.asking:
		return time.Time{}
	case !w.until.IsZero():
		return w.until
	}
	return w.next
}

// empty reports whether nothing is pending, under way or unsettled.
func (w *window) empty() bool {
	return !w.busy() && !w.woken && w.next.IsZero() && w.until.IsZero()
}

// busy reports whether a turn or an attempt is under way, or a result unsettled.
func (w *window) busy() bool { return w.asking || w.inFlight > 0 || len(w.ended) > 0 }
