package ingest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"agentsvc/actors/durable"
	"agentsvc/cluster"
	"agentsvc/persistence/knowledge"
	"agentsvc/schemas/document"
	"agentsvc/schemas/id"
	"agentsvc/schemas/model"
	"agentsvc/schemas/turn"
)

// slow is a store that is quick, a parser of documents of Size chunks, and a provider that needs 20 s for a batch.
type slow struct {
	Store

	mu    sync.Mutex // guards the fields below
	asked int
	open  int // documents that are read and have not ended
	most  int // of these
}

func (*slow) Write(context.Context, knowledge.Target, []document.Chunk, [][]float32) (bool, error) {
	return true, nil
}

func (s *slow) Parse(_ context.Context, in document.Input, _ document.Chunking, emit func(document.Chunk) error) (info document.Info, err error) {
	s.mu.Lock()
	s.open++
	s.most = max(s.most, s.open)
	s.mu.Unlock()
	for i := range int(in.Size) {
		if err := emit(document.Chunk{Position: i, Text: "text"}); err != nil {
			return info, err
		}
	}
	return info, nil
}

func (s *slow) Embed(_ context.Context, _ id.TenantID, _ model.EmbeddingModel, texts []string) (out model.Embedded, err error) {
	time.Sleep(20 * time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked += len(texts)
	for range texts {
		out.Vectors = append(out.Vectors, []float32{1})
	}
	return out, nil
}

func newSlow() (*slow, *kind) {
	s := &slow{}
	return s, &kind{cfg: Config{Store: s, Parser: s, Embedder: s, Waiting: mostWaiting, Log: zerolog.Nop()}, places: turn.New(2, 1), embedding: turn.New(embedPlaces, embedPlacesTenant),
		entered: entered{at: map[cluster.Address]*turn.Places{}}}
}

// index indexes a document of so many chunks.
func (s *slow) index(t *testing.T, k *kind, of id.TenantID, chunks int) {
	a, name := cluster.Address{Tenant: of, ID: id.NewAnywhere()}, "m"
	r := Row{Size: int64(chunks), Content: 1, Generation: 1, Attempts: 1, EmbedProvider: &name, EmbedModel: &name}
	if got := k.enter(t.Context(), durable.Activation{Address: a}, r); got != (Entered{}) {
		t.Errorf("no place: %+v", got)
	}
	if got, ok := k.build(t.Context(), a, r).(Built); !ok || got.Chunks != chunks {
		t.Errorf("built: %+v", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

func tenants(n int) (list []id.TenantID) {
	for range n {
		list = append(list, id.TenantID{UUID: id.NewAnywhere()})
	}
	return list
}

// Long documents of slow providers do not hold up those of other tenants: each has its place for a minute, if others wait for one. Their
// vectors are made once all the same.
func TestLongDocumentsGiveTheirPlacesToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, k := newSlow()
		began := time.Now()
		var mu sync.Mutex // guards ended
		var ended []string
		var wg sync.WaitGroup
		begin := func(name string, of id.TenantID, chunks int) {
			wg.Go(func() {
				s.index(t, k, of, chunks)
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, fmt.Sprint(name, " ", time.Since(began)))
			})
		}
		busy := tenants(embedPlaces / embedPlacesTenant)
		for _, of := range busy {
			for range embedPlacesTenant + 1 {
				begin("long", of, 10*batch) // 200 s
			}
		}
		synctest.Wait()
		begin("short", tenants(1)[0], 1)
		wg.Wait()
		if ended[0] != "short 1m20s" {
			t.Errorf("ended: %v", ended)
		}
		if want := len(busy)*(embedPlacesTenant+1)*10*batch + 1; s.asked != want {
			t.Errorf("%d texts were asked for, want %d", s.asked, want)
		}
		for _, of := range slices.Repeat(busy, embedPlacesTenant) {
			if !k.embedding.Try(of) {
				t.Error("a place is lost")
			}
		}
	})
}

// Documents that wait in the middle, with what was read of them in files, are bounded.
func TestDocumentsThatWaitInTheMiddleAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, k := newSlow()
		var wg sync.WaitGroup
		for _, of := range tenants(embedPlaces + mostYielded + 8) {
			wg.Go(func() { s.index(t, k, of, 5*batch) })
		}
		wg.Wait()
		if s.most != embedPlaces+mostYielded {
			t.Errorf("%d documents were in the middle at once", s.most)
		}
	})
}
