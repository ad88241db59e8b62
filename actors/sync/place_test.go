package sync

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/id"
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
