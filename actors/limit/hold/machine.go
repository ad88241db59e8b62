package hold

import (
	"slices"
	"time"

	"agentsvc/schemas/id"
)

// semaphore is who holds something of which at most so many may be held.
type semaphore struct {
	holders  []holding          // few, and there may be a count for each visitor: no map
	refusals map[id.UUID]uint32 // who is to be refused, unless the check of this number finds room; nil: nobody
	looked   time.Duration      // when it was last looked whether they do, since the Holds were made
	begun    uint32             // checks that have begun; at most one is under way
	ended    uint32
}

// holding is one of the holders.
type holding struct {
	who    id.UUID
	member id.MemberID
	begun  uint32 // checks that had begun before
}

// add makes who one of the holders, or holding as of now.
func (c *semaphore) add(who id.UUID, m id.MemberID) {
	h := holding{who, m, c.begun}
	if i := c.index(who); i >= 0 {
		c.holders[i] = h
		return
	}
	c.holders = append(c.holders, h)
}

func (c *semaphore) index(who id.UUID) int {
	return slices.IndexFunc(c.holders, func(h holding) bool { return h.who == who })
}

// hold answers a Hold. Nobody is refused before a check that began after he asked:
// until then he is to wait.
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
	case !known && len(c.holders) == 0: // at most none
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

// forget frees the places of those who live no more, and returns how many.
func (c *semaphore) forget(living []id.MemberID) int {
	before := len(c.holders)
	c.holders = slices.DeleteFunc(c.holders, func(h holding) bool { return !slices.Contains(living, h.member) })
	return before - len(c.holders)
}

// begin begins a check of those who hold, if none is under way: these are to be
// asked.
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

// checked ends a check with who still holds, on the members that answered. Who
// came since it began is not known there, maybe. It returns how many are gone.
func (c *semaphore) checked(still map[id.MemberID][]id.UUID) int {
	before := len(c.holders)
	c.holders = slices.DeleteFunc(c.holders, func(h holding) bool {
		holders, answered := still[h.member]
		return answered && h.begun < c.begun && !slices.Contains(holders, h.who)
	})
	c.ended = c.begun
	return before - len(c.holders)
}

// asked reports whether somebody waits for a check that has not begun.
func (c *semaphore) asked() bool {
	for _, n := range c.refusals {
		if n > c.begun {
			return true
		}
	}
	return false
}

// tidy forgets who was to wait: those who still ask are noted again, those who gave
// up may not have said so.
func (c *semaphore) tidy() {
	if c.begun == c.ended {
		clear(c.refusals)
	}
}

func (c *semaphore) idle() bool {
	return len(c.holders) == 0 && len(c.refusals) == 0 && c.begun == c.ended
}
