package sync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/source"
	"agentsvc/schemas/turn"
)

// reads is a store whose walk ends when it reads what it knows of a page's items.
type reads struct {
	Store
	what func()
}

var errRead = errors.New("it reads")

func (r reads) KnownDocuments(context.Context, *store.Walk, []string) (map[string]store.KnownDocument, error) {
	r.what()
	return nil, errRead
}

// TestAPlaceIsGivenUpBetweenPages, and not while the content of an item is open: its time would run out.
func TestAPlaceIsGivenUpBetweenPages(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]source.Item{
		"a listing":             {ID: "a"},
		"a page with a content": {ID: "a", Content: &source.Content{Body: io.NopCloser(strings.NewReader("x"))}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				places := turn.New(1, 1)
				p := &place{places: places, tenant: id.TenantID{UUID: id.NewAnywhere()}}
				if err := p.take(t.Context()); err != nil {
					t.Fatal(err)
				}
				var served, before atomic.Bool
				go func() {
					other := id.TenantID{UUID: id.NewAnywhere()}
					if err := places.Take(t.Context(), other); err != nil {
						t.Error(err)
					}
					served.Store(true)
					places.Give(other)
				}()
				synctest.Wait()
				k := &kind{cfg: Config{Store: reads{what: func() { before.Store(served.Load()) }}}, places: places}
				w := &walker{kind: k, place: p, begun: &store.BegunWalk{}, since: time.Now().Add(-slice)}
				if err := w.page(t.Context(), source.Page{Items: []source.Item{item}}); !errors.Is(err, errRead) {
					t.Fatal(err)
				}
				if before.Load() != (item.Content == nil) {
					t.Errorf("the other tenant was served before the item: %t", before.Load())
				}
				p.give()
				synctest.Wait()
				if !served.Load() {
					t.Error("the other tenant was not served")
				}
			})
		})
	}
}

// away is a store of sources beside a store of files that does not serve.
type away struct {
	Store
	Files
	source.Source
	lists int
}

func (*away) BeginWalk(context.Context, id.TenantID, id.SourceID, int64) (*store.BegunWalk, error) {
	return &store.BegunWalk{Kind: lifecycle.SourceObjectStore}, nil
}

func (*away) KnownDocuments(context.Context, *store.Walk, []string) (map[string]store.KnownDocument, error) {
	return nil, nil
}

func (a *away) Walk(ctx context.Context, _ source.Position, each func(context.Context, source.Page) error) error {
	a.lists++
	return each(ctx, source.Page{Items: []source.Item{{ID: "a"}}, Last: true})
}

func (*away) Fetch(context.Context, source.Item) (source.Content, error) {
	return source.Content{Body: io.NopCloser(strings.NewReader("x"))}, nil
}

func (*away) Put(context.Context, id.TenantID, id.FileID, io.Reader, int64) (int64, [32]byte, error) {
	return 0, [32]byte{}, errors.New("no space")
}

func (*away) TooLarge(error) bool { return false }

// TestAVendorIsSparedWhileFilesAreAway: a walk that cannot store what it fetches asks the vendor again after pauses that double, and
// holds no place meanwhile.
func TestAVendorIsSparedWhileFilesAreAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &away{}
		k := &kind{places: turn.New(1, 1), cfg: Config{Store: a, Files: a, Patience: patience, Log: zerolog.Nop(),
			Connect: func(lifecycle.SourceKind, source.Config, map[string]string) (source.Source, error) { return a, nil }}}
		tenant := id.TenantID{UUID: id.NewAnywhere()}
		s := State{Enabled: true, Status: lifecycle.SourceSyncing}
		began := time.Now()
		for time.Since(began) < time.Hour {
			results := make(chan any)
			go func() {
				results <- k.perform(t.Context(), durable.Activation{Address: cluster.Address{Tenant: tenant}}, Machine{}.Owed(s)[0])
			}()
			synctest.Wait() // it pauses
			if !k.places.Try(tenant) {
				t.Fatal("a walk that pauses holds its place")
			}
			k.places.Give(tenant)
			d, err := Machine{}.Decide(s, <-results, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s = d.Next
		}
		if a.lists < 12 || a.lists > 22 {
			t.Errorf("%d listings in an hour", a.lists)
		}
	})
}

// busy is a source whose vendor asks to wait.
type busy struct {
	*away
	wait  time.Duration
	pages int // that it gives before, of each walk
}

func (b *busy) Walk(ctx context.Context, _ source.Position, each func(context.Context, source.Page) error) error {
	b.lists++
	for i := range b.pages {
		if err := each(ctx, source.Page{Resume: fmt.Sprint(b.lists, i)}); err != nil {
			return err
		}
	}
	return &source.Fault{Reason: "busy", Status: 429, Again: true, RetryAfter: b.wait}
}

func (*busy) WriteWalk(context.Context, *store.Walk, *store.WalkPage) ([]id.DocumentID, error) {
	return nil, nil
}

func (*busy) CountDocuments(context.Context, id.TenantID, id.SourceID) (int, error) { return 7, nil }

// TestPausesThatAVendorAsksFor take as long as it asks for, without a place. Too long ones, and too many in which nothing comes of the
// walks, end the sync.
func TestPausesThatAVendorAsksFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wait  time.Duration
		pages int
		lists int // until the sync ends
	}{
		"of a minute":                     {time.Minute, 0, mostWaits + 1},
		"of ten minutes":                  {mostAsked, 0, mostWaits + 1},
		"of more":                         {mostAsked + 1, 0, 1},
		"between pages of a long listing": {time.Minute, 1, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := &busy{&away{}, c.wait, c.pages}
				k := &kind{places: turn.New(1, 1), cfg: Config{Store: b, Files: b, Patience: patience, Log: zerolog.Nop(),
					Connect: func(lifecycle.SourceKind, source.Config, map[string]string) (source.Source, error) { return b, nil }}}
				tenant := id.TenantID{UUID: id.NewAnywhere()}
				s := State{Enabled: true, Status: lifecycle.SourceSyncing}
				began := time.Now()
				for b.lists < 50 && s.walks() {
					results := make(chan any, 1)
					go func() {
						results <- k.perform(t.Context(), durable.Activation{Address: cluster.Address{Tenant: tenant}}, Machine{}.Owed(s)[0])
					}()
					synctest.Wait()
					if !k.places.Try(tenant) {
						t.Fatal("a walk that pauses holds its place")
					}
					k.places.Give(tenant)
					d, err := Machine{}.Decide(s, <-results, time.Now())
					if err != nil {
						t.Fatal(err)
					}
					s = d.Next
					if !s.walks() {
						if f := d.Facts[0].(Finished); f.OK || f.Error != "busy" || f.Documents != 7 {
							t.Errorf("%+v", f)
						}
						break
					}
					if took := time.Since(began); took != c.wait*time.Duration(b.lists) {
						t.Fatalf("%d pauses took %s", b.lists, took)
					}
				}
				if b.lists != c.lists {
					t.Errorf("%d walks, want %d", b.lists, c.lists)
				}
			})
		})
	}
}

// TestPausesBeginAnew with a step.
func TestPausesBeginAnew(t *testing.T) {
	t.Parallel()
	for idle, want := range map[int]time.Duration{0: pauseAgain, 1: pauseAgain, 2: 2 * pauseAgain, 5: 16 * pauseAgain, 9: mostPause, 1000: mostPause} {
		if got := pauseOf(idle); got != want {
			t.Errorf("%d: %s, want %s", idle, got, want)
		}
	}
	s := State{Enabled: true, Status: lifecycle.SourceSyncing, Idle: 7}
	for idle, m := range map[int]any{0: Again{}, 8: Again{Idle: 8}, 7: Lost{}} {
		if d, err := (Machine{}).Decide(s, m, time.Now()); err != nil || (Machine{}).Owed(d.Next)[0].(Walk).Idle != idle {
			t.Errorf("%T: %+v %v", m, d.Next, err)
		}
	}
}
