package main

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestHowOftenAHeapIsCollected(t *testing.T) {
	for _, c := range []struct {
		reachable uint64
		want      int
	}{
		{0, maxGCPercent},
		{1 << 20, maxGCPercent},
		{4 << 20, maxGCPercent},
		{5 << 20, 1280},
		{20 << 20, 320},
		{heapRoom - 1, usualGCPercent},
		{heapRoom, usualGCPercent},
		{1 << 40, usualGCPercent},
	} {
		t.Run(fmt.Sprintf("%d bytes", c.reachable), func(t *testing.T) {
			if got := gcPercent(c.reachable); got != c.want {
				t.Errorf("collected with %d %%, want %d %%", got, c.want)
			}
		})
	}
}

// TestAfterEachCollection: the percentage follows what each collection finds alive.
func TestAfterEachCollection(t *testing.T) {
	found := make(chan uint64)
	afterEachCollection(func() {
		select {
		case found <- reachable():
		case <-t.Context().Done():
		}
	})
	// The first that comes may have been found before.
	alive := func() (bytes uint64) {
		for n := 0; n < 2; {
			runtime.GC()
			select {
			case bytes = <-found:
				n++
			case <-time.After(time.Millisecond): // it was not waited for yet
			}
		}
		return bytes
	}
	const much = 48 << 20
	before := alive()
	kept := make([]byte, much)
	with := alive()
	runtime.KeepAlive(kept)
	after := alive()
	if with < before+much/2 || after > with-much/2 {
		t.Errorf("%d bytes alive, then %d with %d more, then %d without them", before, with, much, after)
	}
}

// TestANodesHeapHasRoom: unless the operator says otherwise.
func TestANodesHeapHasRoom(t *testing.T) {
	n := newNode(t)
	percent := func(env string) float64 {
		n.start(env)
		v, ok := (&member{node: n}).metric("go_gc_gogc_percent")
		if !ok {
			t.Fatal("the node does not tell how its heap is collected")
		}
		if err := n.signal(syscall.SIGTERM, 15*time.Second); err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := percent("GOGC="); v <= usualGCPercent {
		t.Errorf("a node's small heap is collected with %v %%", v)
	}
	if v := percent("GOGC=50"); v != 50 {
		t.Errorf("with GOGC=50 it is collected with %v %%", v)
	}
}
