// Package checktest measures memory and work, for the tests of limits.
package checktest

import (
	"bytes"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"syscall"
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

// Work returns how much CPU time f takes on its goroutine, counted in readings of one MiB of JSON, which are measured
// before it and after it. So it does not depend on how fast the machine is, or how busy.
func Work(f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	doc := append(append([]byte(`[`), bytes.Repeat([]byte(`{"a":[1,"two",null]},`), 1<<20/21)...), `{}]`...)
	const readings = 4
	unit := func() time.Duration {
		return spent(func() {
			for range readings {
				if !json.Valid(doc) {
					panic("checktest: the document is no JSON")
				}
			}
		}) / readings
	}
	before := unit()
	took := spent(f)
	return float64(took) / float64(max(before, unit(), time.Microsecond))
}

// spent returns the CPU time that this thread takes for f.
func spent(f func()) time.Duration {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	f()
	return used() - began
}
