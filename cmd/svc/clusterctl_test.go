package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"agentsvc/cluster/membership"
	"agentsvc/schemas/id"
)

func TestNodesAsAnOperatorSeesThem(t *testing.T) {
	listed := func(address string, left time.Duration, draining, dead bool) membership.Listed {
		l := membership.Listed{ID: id.MemberID{UUID: id.NewAnywhere()}, Address: address, LeaseLeft: left, Draining: draining}
		if dead {
			l.DeadAt = time.Now()
		}
		return l
	}
	for name, c := range map[string]struct {
		nodes  []membership.Listed
		states string
		owning []int // who has shards
	}{
		"two serve":               {[]membership.Listed{listed("a:1", time.Second, false, false), listed("b:1", time.Second, false, false)}, "serving serving", []int{0, 1}},
		"one drains":              {[]membership.Listed{listed("a:1", time.Second, true, false), listed("b:1", time.Second, false, false)}, "draining serving", []int{1}},
		"all drain":               {[]membership.Listed{listed("a:1", time.Second, true, false)}, "draining", []int{0}},
		"one has lost its lease":  {[]membership.Listed{listed("a:1", -time.Second, false, false), listed("b:1", time.Second, false, false)}, "silent serving", []int{0, 1}},
		"one is marked dead":      {[]membership.Listed{listed("a:1", time.Second, false, true), listed("b:1", time.Second, false, false)}, "dead serving", []int{1}},
		"everybody is dead":       {[]membership.Listed{listed("a:1", time.Second, false, true)}, "dead", nil},
		"a process without peers": {[]membership.Listed{listed("", time.Second, false, false)}, "serving", []int{0}},
	} {
		t.Run(name, func(t *testing.T) {
			var states []string
			total := 0
			for i, n := range describeNodes(c.nodes) {
				states = append(states, n.State)
				total += n.Shards
				if (n.Shards > 0) != slices.Contains(c.owning, i) {
					t.Errorf("node %d has %d shards", i, n.Shards)
				}
			}
			if got := strings.Join(states, " "); got != c.states {
				t.Errorf("%s, want %s", got, c.states)
			}
			if len(c.owning) > 0 && total != id.Shards {
				t.Errorf("%d shards in all", total)
			}
		})
	}
}

func TestOneNodeIsMeant(t *testing.T) {
	a, b, dead := membership.Listed{ID: id.MemberID{UUID: id.NewAnywhere()}, Address: "a:1"}, membership.Listed{ID: id.MemberID{UUID: id.NewAnywhere()}, Address: "b:1"},
		membership.Listed{ID: id.MemberID{UUID: id.NewAnywhere()}, Address: "c:1", DeadAt: time.Now()}
	b.ID.UUID[15], a.ID.UUID[15] = 0x11, 0x21
	end := func(l membership.Listed) string { return l.ID.String()[28:] }
	all := []membership.Listed{a, b, dead}
	for name, want := range map[string]id.MemberID{
		"a:1": a.ID, b.ID.String(): b.ID, strings.ToUpper(a.ID.String()): a.ID, end(a): a.ID, end(b): b.ID,
		"11": {}, "1": {}, a.ID.String()[:8]: {}, "c:1": {}, "": {}, "zz": {},
	} {
		got, err := pickNode(all, name)
		switch {
		case want.IsZero() && err == nil:
			t.Errorf("%q is %s", name, got.Address)
		case !want.IsZero() && (err != nil || got.ID != want):
			t.Errorf("%q: %v", name, err)
		}
	}
}
