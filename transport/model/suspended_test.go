package model

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	schema "agentsvc/schemas/model"
	"agentsvc/transport/egress"
	"agentsvc/transport/model/fake"
)

// security.md, Invariants 23: a node cut off stops acting. It sends no request, does not
// retry, and reports a cancelled turn.
func TestATurnWithoutTheLease(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply fake.Reply
		// looks is how often the lease is found held: by the guard before it asks, in
		// its dial twice, and by each write.
		looks  int64
		size   int
		asked  int
		pauses int
	}{
		{"before it is asked", fake.Reply{Text: []string{"a"}}, 0, 1, 0, 0},
		{"before it is dialled", fake.Reply{Text: []string{"a"}}, 1, 1, 0, 0},
		{"while its name is resolved", fake.Reply{Text: []string{"a"}}, 2, 1, 0, 0},
		{"before it is written", fake.Reply{Text: []string{"a"}}, 3, 1, 0, 0},
		{"while it is written", fake.Reply{Text: []string{"a"}}, 4, 4 << 20, 0, 0},
		{"between two tries", fake.Reply{Status: 503}, 4, 1, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			protocols(t, func(t *testing.T, kind string) {
				r := newRig(t, c.reply)
				var looks, held atomic.Int64
				held.Store(c.looks)
				r.r = NewRegistry(Config{Sleep: r.p.sleep, Guard: egress.New(egress.Config{Allow: loopback, Live: func() bool {
					return looks.Add(1) <= held.Load()
				}})})
				defer r.r.Close()
				var h heard
				_, err := r.client(kind).Stream(context.Background(), ask(strings.Repeat("x", c.size)), &h)
				var e *schema.Error
				if !errors.As(err, &e) || e.Kind != schema.Cancelled || !e.BeforeFirstToken || !errors.Is(err, egress.ErrSuspended) || !errors.Is(err, context.Canceled) {
					t.Fatalf("%+v", err)
				}
				if len(r.p.list) != c.pauses || len(r.Requests()) != c.asked || len(h.order) != 0 {
					t.Fatalf("asked %d times, paused %v, heard %q", len(r.Requests()), r.p.list, h.order)
				}
				if strings.Contains(e.Message, "127.0.0.1") {
					t.Fatal(e.Message)
				}
				held.Store(1 << 40)
				if c.reply.Status == 0 {
					if got, err := r.client(kind).Stream(context.Background(), ask("x"), &heard{}); err != nil || got.Text != "a" {
						t.Fatalf("with the lease again: %v, %v", got, err)
					}
				}
			})
		})
	}
}

// losing takes the lease away with what it hears.
type losing struct {
	heard
	lost *atomic.Bool
}

func (l *losing) Text(s string) {
	l.lost.Store(true)
	l.heard.Text(s)
}

// A turn whose response is being read sends nothing: it continues until it is cancelled, and
// the next one waits for the lease.
func TestATurnGoesOnBeingHeard(t *testing.T) {
	protocols(t, func(t *testing.T, kind string) {
		r := newRig(t, fake.Reply{Text: []string{"a", "b", "c"}, Delay: 10 * time.Millisecond})
		var lost atomic.Bool
		r.r = NewRegistry(Config{Sleep: r.p.sleep, Guard: egress.New(egress.Config{Allow: loopback, Live: func() bool { return !lost.Load() }})})
		defer r.r.Close()
		if got, err := r.client(kind).Stream(context.Background(), ask("x"), &losing{lost: &lost}); err != nil || got.Text != "abc" {
			t.Fatalf("%v, %v", got, err)
		}
		_, err := r.client(kind).Stream(context.Background(), ask("x"), &heard{})
		var e *schema.Error
		if !errors.As(err, &e) || e.Kind != schema.Cancelled || len(r.Requests()) != 1 {
			t.Fatal(err)
		}
	})
}
