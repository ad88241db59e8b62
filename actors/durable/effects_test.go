package durable

import (
	"fmt"
	"slices"
	"testing"

	"agentsvc/schemas/id"
)

// held is a job that runs until it is let go.
type held struct {
	of    id.TenantID
	name  string
	began chan string
	let   chan struct{}
}

func (j *held) tenant() id.TenantID { return j.of }

func (j *held) waits() {}

func (j *held) run() { j.began <- j.name; <-j.let }

// A tenant has at most half of the places, its jobs begin in order, and the tenants that wait take turns.
func TestPlacesOfEffects(t *testing.T) {
	p, began := &pool{max: 4, start: func(f func()) { go f() }}, make(chan string, 64)
	jobs := map[string]*held{}
	add := func(tenant id.TenantID, name string, n int) {
		for i := range n {
			j := &held{of: tenant, name: fmt.Sprint(name, i), began: began, let: make(chan struct{})}
			jobs[j.name] = j
			p.submit(j)
		}
	}
	begin := func(names ...string) {
		t.Helper()
		var got []string
		for range names {
			got = append(got, <-began)
		}
		if slices.Sort(got); !slices.Equal(got, names) {
			t.Fatalf("%v began, want %v", got, names)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if waiting := len(began); waiting > 0 || p.running > p.max {
			t.Fatalf("%d more began, %d run", waiting, p.running)
		}
	}
	end := func(name string) { close(jobs[name].let) }
	a, b, c := id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}, id.TenantID{UUID: id.NewAnywhere()}
	add(a, "a", 3000)
	begin("a0", "a1")
	add(b, "b", 2)
	begin("b0", "b1") // what a waits for does not hold up b
	add(b, "b'", 1)
	add(c, "c", 3)
	end("a0")
	begin("c0") // a has had its turn
	end("b0")
	begin("a2")
	end("c0")
	begin("c1")
	end("b1")
	begin("b'0")
	end("a1")
	begin("c2")
	end("b'0")
	begin("a3")
	for i := 2; i < 2998; i++ {
		end(fmt.Sprint("a", i))
		begin(fmt.Sprint("a", i+2))
	}
	for _, name := range []string{"c1", "c2", "a2998", "a2999"} {
		end(name)
	}
	if err := p.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.running != 0 || len(p.lines) != 0 || len(p.order) != 0 {
		t.Errorf("%d run, %d lines, %d in order", p.running, len(p.lines), len(p.order))
	}
}
