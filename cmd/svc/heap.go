package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapRoom is how much is allocated at least between two collections of a heap that
	// is smaller.
	heapRoom = 64 << 20
	// usualGCPercent is Go's own: a heap is collected when it has doubled.
	usualGCPercent = 100
	// maxGCPercent keeps the smallest heap that is collected, Go's 4 MiB times the
	// percentage, at heapRoom.
	maxGCPercent = heapRoom / (4 << 20) * 100
)

// giveHeapRoom has a small heap collected less often, for as long as the process lives.
// A node keeps some 20 MiB alive; under load it would allocate as much again each second,
// and mark for 10 to 20 ms of that second on CPUs for which answers wait. Who sets GOGC
// has it; GOMEMLIMIT holds either way.
func giveHeapRoom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	room := func() { debug.SetGCPercent(gcPercent(reachable())) }
	room()
	afterEachCollection(room)
}

// gcPercent is the percentage with which a process that keeps so many bytes alive
// allocates heapRoom between two collections, or as much as it keeps, where that is more.
func gcPercent(reachable uint64) int {
	if reachable == 0 {
		return maxGCPercent
	}
	return int(min(max(heapRoom*100/reachable, usualGCPercent), maxGCPercent))
}

// reachable is what the last collection found alive and what the percentage counts with
// it, in bytes; 0 before the first one.
func reachable() (bytes uint64) {
	found := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	metrics.Read(found)
	for _, s := range found {
		bytes += s.Value.Uint64()
	}
	return bytes
}

// afterEachCollection calls f after each collection, one call at a time.
func afterEachCollection(f func()) {
	type dead struct{ _ *byte } // not one of the small objects that are allocated together
	runtime.AddCleanup(new(dead), func(struct{}) {
		f()
		afterEachCollection(f)
	}, struct{}{})
}
