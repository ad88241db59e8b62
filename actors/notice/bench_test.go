package notice

import (
	"context"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/persistence/feed"
	"agentsvc/schemas/event"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/msg"
)

type sink struct{}

func (sink) Send(*event.Frame) bool      { return true }
func (sink) SendAll([]*event.Frame) bool { return true }
func (sink) Cut()                        {}

type none struct{}

func (none) Changed(context.Context, []feed.Named) (*feed.Shown, error) { return &feed.Shown{}, nil }

// BenchmarkNote is what a commit pays: for a tenant without a console while 1000 others have one,
// and for a tenant with 200 consoles and more changes than are named.
func BenchmarkNote(b *testing.B) {
	board := New(none{}, nil, zerolog.Nop())
	if err := board.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer board.Stop()
	open := func(t id.TenantID) {
		r := board.Open(b.Context(), Viewer{Tenant: t, Topics: All, Role: lifecycle.RoleOwner, Decides: decides(lifecycle.RoleOwner)})
		r.Attach(sink{})
		b.Cleanup(r.Gone)
	}
	for range 1000 {
		open(id.TenantID{UUID: id.NewAnywhere()})
	}
	busy := id.TenantID{UUID: id.NewAnywhere()}
	for range 200 {
		open(busy)
	}
	b.Run("unwatched", func(b *testing.B) {
		t, c := id.TenantID{UUID: id.NewAnywhere()}, run()
		for b.Loop() {
			board.Note(t, c)
		}
	})
	b.Run("watched", func(b *testing.B) {
		all := make([]msg.Change, 4096)
		for i := range all {
			all[i] = run()
		}
		i := 0
		for b.Loop() {
			board.Note(busy, all[i%len(all)])
			i++
		}
	})
}
