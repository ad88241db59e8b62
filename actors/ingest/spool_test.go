package ingest

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsvc/schemas/document"
)

// What is spooled comes back as it was, in its order, and no more than so much.
func TestSpool(t *testing.T) {
	t.Parallel()
	s, err := newSpool(filepath.Join(t.TempDir(), "new"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	want := []document.Chunk{{Position: 0, Text: "<a> & \u2028 \ufffd", Heading: "H › I", Page: 3, Tokens: 7, Overlap: 1}, {Position: 1}, {Position: 2, Text: strings.Repeat("日本", 50_000)}}
	for _, c := range want {
		if err := s.add(c); err != nil {
			t.Fatal(err)
		}
	}
	var got []document.Chunk
	if err := s.each(func(c document.Chunk) error { got = append(got, c); return nil }); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d chunks, %v", len(got), err)
	}
	stop := errors.New("stop")
	if err := s.each(func(document.Chunk) error { return stop }); err != stop {
		t.Error(err)
	}
	small, err := newSpool(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer small.close()
	small.most = 10
	if err := errors.Join(small.add(document.Chunk{Text: "0123456789"}), small.each(func(document.Chunk) error { return nil })); err != nil {
		t.Error(err)
	}
	if err := small.add(document.Chunk{Heading: "x"}); err != errTooMuch {
		t.Error(err)
	}
	small.count, small.most = mostChunks, mostSpooled
	if err := small.add(document.Chunk{}); err != errTooMuch {
		t.Error(err)
	}
}
