package dev

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"agentsvc/schemas/testkit"
)

// behind starts nodes with a handler each and a balancer that found them ready.
func behind(t *testing.T, handlers ...http.HandlerFunc) (front *httptest.Server, b *Balancer) {
	t.Helper()
	var addrs []string
	for _, h := range handlers {
		node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" {
				h(w, r)
			}
		}))
		t.Cleanup(node.Close)
		addrs = append(addrs, strings.TrimPrefix(node.URL, "http://"))
	}
	b = NewBalancer(addrs, zerolog.Nop())
	for _, n := range b.nodes {
		n.ready.Store(b.answers(t.Context(), n))
	}
	front = httptest.NewServer(b)
	t.Cleanup(front.Close)
	return front, b
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(got)
}

func echoAs(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, name, " ", string(body), " ", r.Header.Get("X-Forwarded-For"), err)
	}
}

func TestBalancerSharesAndForwards(t *testing.T) {
	front, _ := behind(t, echoAs("one"), echoAs("two"))
	seen := map[string]int{}
	for range 10 {
		_, got := post(t, front.URL, "hello")
		seen[got]++
	}
	if seen["one hello 127.0.0.1<nil>"] != 5 || seen["two hello 127.0.0.1<nil>"] != 5 {
		t.Errorf("%v", seen)
	}
}

func TestBalancerSendsElsewhereWhatANodeNeverHeard(t *testing.T) {
	front, b := behind(t, echoAs("one"), echoAs("two"))
	b.nodes[0].url.Host = testkit.Reserved(t)
	for range 4 {
		b.nodes[0].ready.Store(true)
		if status, got := post(t, front.URL, "whole body"); status != 200 || !strings.HasPrefix(got, "two whole body") {
			t.Errorf("%d %s", status, got)
		}
	}
	b.nodes[0].ready.Store(true)
	b.nodes[1].ready.Store(false)
	if status, got := post(t, front.URL, "x"); status != 503 || !strings.Contains(got, `"code":"UNAVAILABLE"`) {
		t.Errorf("%d %s", status, got)
	}
}

func TestBalancerDoesNotRepeatWhatANodeMayHaveHeard(t *testing.T) {
	var heard atomic.Int32
	cut := func(w http.ResponseWriter, r *http.Request) {
		heard.Add(1)
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	}
	front, _ := behind(t, cut, cut)
	if status, _ := post(t, front.URL, "x"); status != 503 || heard.Load() != 1 {
		t.Errorf("%d, heard %d times", status, heard.Load())
	}
}

func TestBalancerStreams(t *testing.T) {
	next := make(chan string)
	front, b := behind(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintln(w, "zero")
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		for line := range next {
			fmt.Fprintln(w, line)
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
		}
	})
	resp, err := http.Get(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != "zero" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	for _, want := range []string{"one", "two"} {
		next <- want
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
	}
	if n := b.nodes[0].open.Load(); n != 1 {
		t.Errorf("%d open", n)
	}
	close(next)
}
