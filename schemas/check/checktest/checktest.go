// Package checktest measures memory, for the tests of limits.
package checktest

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Most is how many bytes one request may add to a node's memory.
const Most = 50 << 20

// Grows returns by how many bytes the live heap grows at most while f runs. It runs the
// collector often, so that garbage counts little. No other goroutine may allocate meanwhile.
func Grows(f func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	runtime.GC()
	heap := func() uint64 {
		s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	before := heap()
	done, peak := make(chan struct{}), make(chan uint64)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		most := before
		for {
			select {
			case <-tick.C:
				most = max(most, heap())
			case <-done:
				peak <- max(most, heap())
				return
			}
		}
	}()
	f()
	close(done)
	return <-peak - before
}
