package run

import (
	"testing"

	"agentsvc/actors/durable"
	"agentsvc/persistence/journal"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

// opened is an approval that was just opened.
func opened(*Call) *Approval { return &Approval{Status: lifecycle.ApprovalPending} }

// endings returns the commits of a run that succeeds and of one that is cancelled while it waits: for a
// tenant with an endpoint, for one without, and without Hears.
func endings(t testing.TB) map[string]func() []*journal.Commit {
	finished := func() (durable.Loaded[State], durable.Decision[State], any) {
		s, a := runningRun(t, plain), answer("hello")
		return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: 2, SetEpoch: 1}}, decide(t, s, a, t0), a
	}
	withdrawn := func() (durable.Loaded[State], durable.Decision[State], any) {
		s := read(calling(t, gatedCall, gatedCall), opened, opened)
		var m any = msg.CancelRun{By: msg.By{Actor: "user:1"}}
		return durable.Loaded[State]{State: s, Guard: journal.Guard{Version: 2, SetEpoch: 1}}, decide(t, s, m, t0), m
	}
	out := map[string]func() []*journal.Commit{}
	for name, hears := range map[string]func(id.TenantID) bool{
		"not asked":    nil,
		"nobody hears": func(id.TenantID) bool { return false },
		"heard":        func(id.TenantID) bool { return true },
	} {
		k := &kind{cfg: Config{Hears: hears, Sealer: lawVault}}
		prev, d, m := finished()
		waited, dropped, cancel := withdrawn()
		op := id.OpID{UUID: id.NewAnywhere()}
		out[name] = func() []*journal.Commit {
			return []*journal.Commit{k.rows(lawAddress, prev, d, m, op, t0), k.rows(lawAddress, waited, dropped, cancel, op, t0)}
		}
	}
	return out
}

// A tenant without endpoints pays nothing for events.
func TestWithoutSubscribersEventsCostNothing(t *testing.T) {
	of := endings(t)
	cost := func(name string) float64 { return testing.AllocsPerRun(200, func() { of[name]() }) }
	events := func(name string) (n int) {
		for _, c := range of[name]() {
			n += len(c.Events)
		}
		return n
	}
	if events("heard") != 4 { // an end, two withdrawn, an end
		t.Errorf("%d events: the test proves nothing", events("heard"))
	}
	if without, unheard := cost("not asked"), cost("nobody hears"); unheard != without || events("nobody hears") != 0 {
		t.Errorf("%v allocations, %v without Hears, and %d events", unheard, without, events("nobody hears"))
	}
}

// BenchmarkRows makes the commits of two ends.
func BenchmarkRows(b *testing.B) {
	for name, rows := range endings(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				rows()
			}
		})
	}
}
