package knowledge

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentsvc/persistence/store"
	"agentsvc/schemas/knowledge"
)

// A search without a place in time is refused as unavailable, and takes no connection meanwhile.
func TestASearchWithoutAPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add("doc", nil, "Every car needs oil.")
	for range searchesEach {
		if !w.index.places.Try(w.tenant) {
			t.Fatal("no place")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	q := Query{Tenant: w.tenant, Base: w.base, Text: "oil", TopK: 1, Viewer: []string{knowledge.Public}}
	if hits, err := w.index.Search(ctx, q); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("found %v, %v", hits, err)
	}
	// Neither does one that asks first which models there are, and it costs no vector.
	m := &meanings{}
	w.index.embedder = m
	w.model("p", "m")
	w.exec(`UPDATE kb_documents SET embedded_by = 'p/m'`)
	late, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer end()
	if hits, err := w.index.Search(late, q); !errors.Is(err, store.ErrUnavailable) || m.asked() != "" {
		t.Errorf("found %v, %v", hits, err)
	}
	w.index.places.Give(w.tenant)
	if got := w.names("oil"); got != "doc" || m.asked() != "p/m" {
		t.Errorf("found %q", got)
	}
}
