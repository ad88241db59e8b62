package hold

import (
	"slices"
	"time"

	"agentsvc/schemas/id"
)

// semaphore counts the holders of something; Hold.Max bounds them.
type semaphore struct {
	holders   []holding          // few, and there may be a semaphore for each visitor: no map
	refusals  map[id.UUID]uint32 // refused unless the check of this number finds room; nil: none
	lastCheck time.Duration      // when the holders were last checked, since the Semaphores were made
	begun     uint32             // how many checks have begun; at most one is in flight
	ended     uint32
}

// holding is one of the holders.
type holding struct {
	who    id.UUID
	member id.MemberID
	begun  uint32 // checks that had begun before
}

// add adds a holder, or renews it if it is known.
func (c *semaphore) add(who id.UUID, m id.MemberID) {
	h := holding{who, m, c.begun}
	if i := c.index(who); i >= 0 {
		c.holders[i] = h
		return
	}
	c.holders = append(c.holders, h)
}

// addAll is add for many holders of a member.
func (c *semaphore) addAll(who []id.UUID, m id.MemberID) {
	known := make(map[id.UUID]int, len(c.holders))
	for i, h := range c.holders {
		known[h.who] = i
	}
	for _, w := range who {
		h := holding{w, m, c.begun}
		if i, ok := known[w]; ok {
			c.holders[i] = h
			continue
		}
		known[w] = len(c.holders)
		c.holders = append(c.holders, h)
	}
}

func (c *semaphore) index(who id.UUID) int {
	return slices.IndexFunc(c.holders, func(h holding) bool { return h.who == who })
}

// hold answers a Hold. A holder is refused only after a check that began after it asked;
// until then it waits.
func (c *semaphore) hold(m Hold) (ok, wait bool) {
	holds := c.index(m.Holder) >= 0
	if holds || len(c.holders) < m.Max {
		if !holds {
			c.add(m.Holder, m.Member)
		}
		delete(c.refusals, m.Holder)
		return true, false
	}
	n, known := c.refusals[m.Holder]
	switch {
	case !known && len(c.holders) == 0: // Max is 0
		return false, false
	case !known:
		if c.refusals == nil {
			c.refusals = map[id.UUID]uint32{}
		}
		c.refusals[m.Holder] = c.begun + 1
		return false, true
	case c.ended < n:
		return false, true
	}
	delete(c.refusals, m.Holder)
	return false, false
}

func (c *semaphore) release(who id.UUID) {
	c.holders = slices.DeleteFunc(c.holders, func(h holding) bool { return h.who == who })
	delete(c.refusals, who)
}

// forget removes the holders of members that are not living, and returns how many.
func (c *semaphore) forget(living []id.MemberID) int {
	before := len(c.holders)
	c.holders = slices.DeleteFunc(c.holders, func(h holding) bool { return !slices.Contains(living, h.member) })
	return before - len(c.holders)
}

// begin begins a check of the holders, if none is in flight. It returns the members to
// ask.
func (c *semaphore) begin() []id.MemberID {
	if c.begun != c.ended || len(c.holders) == 0 {
		return nil
	}
	c.begun++
	var members []id.MemberID
	for _, h := range c.holders {
		if !slices.Contains(members, h.member) {
			members = append(members, h.member)
		}
	}
	return members
}

// checked ends a check. still has the holders on each member that answered. A holder that
// was added since the check began may be missing there, and stays. It returns how many
// were removed.
func (c *semaphore) checked(still map[id.MemberID][]id.UUID) int {
	before := len(c.holders)
	sets := make(map[id.MemberID]map[id.UUID]struct{}, len(still)) // there may be many holders, and the lock is held
	for m, holders := range still {
		sets[m] = make(map[id.UUID]struct{}, len(holders))
		for _, who := range holders {
			sets[m][who] = struct{}{}
		}
	}
	c.holders = slices.DeleteFunc(c.holders, func(h holding) bool {
		holders, answered := sets[h.member]
		_, holds := holders[h.who]
		return answered && h.begun < c.begun && !holds
	})
	c.ended = c.begun
	return before - len(c.holders)
}

// asked reports whether a holder waits for a check that has not begun.
func (c *semaphore) asked() bool {
	for _, n := range c.refusals {
		if n > c.begun {
			return true
		}
	}
	return false
}

// forgetWaiting forgets the waiting ones. Those that still ask are noted again; the others may have
// given up without a message.
func (c *semaphore) forgetWaiting() {
	if c.begun == c.ended {
		clear(c.refusals)
	}
}

// idle reports whether there is no holder, no waiting one and no check in flight.
func (c *semaphore) idle() bool {
	return len(c.holders) == 0 && len(c.refusals) == 0 && c.begun == c.ended
}
