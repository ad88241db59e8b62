package id

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestNewCarriesVersionVariantShardAndTime(t *testing.T) {
	for s := range Shard(Shards) {
		before := time.Now().Add(-time.Millisecond)
		u := New(s)
		if u[6]>>4 != 7 || u[8]>>6 != 2 {
			t.Fatalf("%s: version %d variant %b", u, u[6]>>4, u[8]>>6)
		}
		if u.Shard() != s {
			t.Fatalf("%s: shard %d, want %d", u, u.Shard(), s)
		}
		if d := u.Time().Sub(before); d < 0 || d > time.Minute {
			t.Fatalf("%s: time %v", u, u.Time())
		}
	}
}

func TestNewStrictlyIncreasesUnderConcurrency(t *testing.T) {
	const workers, each = 8, 5000
	got := make([][]UUID, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				got[w] = append(got[w], New(Shard(w)))
			}
		})
	}
	wg.Wait()
	seen := map[UUID]bool{}
	for _, ids := range got {
		for i, u := range ids {
			if seen[u] {
				t.Fatalf("%s minted twice", u)
			}
			seen[u] = true
			if i > 0 && string(ids[i-1][:8]) >= string(u[:8]) {
				t.Fatalf("%s is not after %s", u, ids[i-1])
			}
		}
	}
}

func TestParseRoundTripAndRefusals(t *testing.T) {
	u := NewAnywhere()
	for _, s := range []string{u.String(), strings.ToUpper(u.String())} {
		p, err := Parse(s)
		if err != nil || p != u {
			t.Fatalf("Parse(%q) = %v, %v", s, p, err)
		}
	}
	for _, s := range []string{"", "x", u.String()[:35], u.String() + "0", "{" + u.String()[:34] + "}", strings.Replace(u.String(), "-", "0", 1), "g" + u.String()[1:]} {
		if _, err := Parse(s); err == nil {
			t.Errorf("Parse(%q) accepted", s)
		}
	}
}

func TestTypedIDsAreTextInJSON(t *testing.T) {
	type doc struct {
		Run   RunID            `json:"run"`
		By    map[AgentID]bool `json:"by"`
		Maybe *ThreadID        `json:"maybe"`
	}
	d := doc{Run: RunID{NewAnywhere()}, By: map[AgentID]bool{{NewAnywhere()}: true}}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var back doc
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if back.Run != d.Run || len(back.By) != 1 || back.Maybe != nil {
		t.Fatalf("%s read back as %+v", b, back)
	}
	if err := json.Unmarshal([]byte(`{"run":"nope"}`), &back); err == nil {
		t.Fatal("a malformed id was read")
	}
}

func TestForeignUUIDHasOneShard(t *testing.T) {
	u, err := Parse("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
	if err != nil {
		t.Fatal(err)
	}
	if s := u.Shard(); s >= Shards || s != u.Shard() {
		t.Fatalf("shard %d", s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(NewAnywhere().String())
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := Parse(s)
		if err == nil && u.String() != strings.ToLower(s) {
			t.Fatalf("%q read as %s", s, u)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		New(7)
	}
}
