package flow

import (
	"encoding/json"
	"fmt"
	"runtime"
	"sync"
	"testing"
)

func TestPlansAreCached(t *testing.T) {
	doc := full(t)
	var wg sync.WaitGroup
	got := make([]*Plan, 8)
	for i := range got {
		wg.Go(func() { got[i], _ = Cached(doc) })
	}
	wg.Wait()
	if p, err := Cached(doc); err != nil || p == nil || p.Len() != 9 {
		t.Fatal(p, err)
	} else if again, _ := Cached(doc); again != p {
		t.Error("a plan is made again")
	}
	if _, err := Cached(json.RawMessage(`[]`)); err == nil {
		t.Error("no definition is loaded")
	}
}

// The estimate of a plan's weight is no less than what it takes.
func TestTheCacheIsBounded(t *testing.T) {
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	for name, doc := range map[string]func(i int) string{
		"expressions": func(i int) string { return fmt.Sprintf(`{"variables": {"i": %d}, %s`, i, chain(100)[1:]) },
		"nodes":       func(i int) string { return fmt.Sprintf(`{"variables": {"i": %d}, %s`, i, joins()[1:]) },
	} {
		before, kept, weight := heap(), []*Plan{}, 0
		for i := range 20 {
			d := doc(i)
			p, err := Load(json.RawMessage(d))
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Start(t.Context(), json.RawMessage(`{"n": 1}`), nil); err != nil {
				t.Fatal(err)
			}
			kept, weight = append(kept, p), weight+p.weight(len(d))
		}
		grew := heap() - before
		runtime.KeepAlive(kept)
		if grew > weight {
			t.Errorf("%s: plans take %d KB, the estimate is %d KB", name, grew>>10, weight>>10)
		}
		t.Logf("%s: plans take %d KB, the estimate is %d KB", name, grew>>10, weight>>10)
	}
	for i := range maxCached + 100 {
		if _, err := Cached(json.RawMessage(fmt.Sprintf(`{"nodes": [%s], "variables": {"i": %d}}`, delays("a"), i))); err != nil {
			t.Fatal(err)
		}
	}
	if len(plans.kept) > maxCached || plans.bytes > maxCachedBytes || plans.order.Len() != len(plans.kept) {
		t.Errorf("the cache holds %d plans of %d bytes", len(plans.kept), plans.bytes)
	}
}
