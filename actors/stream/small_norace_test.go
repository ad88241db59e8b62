//go:build !race

package stream

import (
	"runtime"
	"testing"

	"agentsvc/schemas/event"
	"agentsvc/schemas/lifecycle"
	"agentsvc/schemas/testkit"
)

func TestAnIdleReaderIsSmall(t *testing.T) {
	t.Run("platform", func(t *testing.T) { testAnIdleReaderIsSmall(t, open) })
	t.Run("relay", func(t *testing.T) { testAnIdleReaderIsSmall(t, openRelay) })
}

func testAnIdleReaderIsSmall(t *testing.T, open func(testing.TB, *Hubs, key, event.Cursor, Conn) *Reader) {
	hs, w, n := setUp(t)
	const count = 2000
	k := running(w)
	hs.Publish(k.tenant, k.run, event.StepBegan(2, 0, lifecycle.StepLLM, "m"))
	conns := make([]sink, count)
	readers := make([]*Reader, 0, count)
	var before, after runtime.MemStats
	goroutines := runtime.NumGoroutine()
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range count {
		readers = append(readers, open(t, hs, k, event.Cursor{Since: -1}, &conns[i]))
	}
	for _, r := range readers {
		testkit.Eventually(t, "a reader has its actor", func() bool { return n.Active(r.address()) })
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / count
	t.Logf("%d bytes each", each)
	if each > 1536 {
		t.Errorf("an idle reader takes %d bytes", each)
	}
	// Readers that have just run their mailboxes keep their goroutines for a while.
	testkit.Eventually(t, "the readers have no goroutines", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	for _, r := range readers {
		r.Gone()
	}
}
