package main

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	textBytes = 49 << 20
	bookPages = 500
)

// book makes a PDF of pages of 45 lines of 80 letters, each content compressed.
func book(pages int) (string, error) {
	var b bytes.Buffer
	var offsets []int
	object := func(body string) {
		offsets = append(offsets, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(offsets), body)
	}
	b.WriteString("%PDF-1.5\n")
	object("<</Type/Catalog/Pages 2 0 R>>")
	var kids strings.Builder
	for i := range pages {
		fmt.Fprintf(&kids, "%d 0 R ", 4+2*i)
	}
	object(fmt.Sprintf("<</Type/Pages/Count %d/Kids[%s]/Resources<</Font<</F 3 0 R>>>>>>", pages, kids.String()))
	object("<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>")
	for page := range pages {
		object(fmt.Sprintf("<</Type/Page/Parent 2 0 R/Contents %d 0 R>>", 5+2*page))
		var z bytes.Buffer
		w := zlib.NewWriter(&z)
		fmt.Fprint(w, "BT /F 11 Tf 14 TL 72 760 Td\n")
		for line := range 45 {
			fmt.Fprintf(w, "(Page %d line %d: a parcel that is lost is refunded in three working days, rule %d.) Tj T*\n", page+1, line+1, page*45+line)
		}
		fmt.Fprint(w, "ET")
		if err := w.Close(); err != nil {
			return "", err
		}
		object(fmt.Sprintf("<</Filter/FlateDecode/Length %d>>\nstream\n%s\nendstream", z.Len(), z.Bytes()))
	}
	start := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(offsets)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(offsets)+1, start)
	return b.String(), nil
}

// resident returns how much memory of its own the service has, and the processes that it started, in KiB: what a file backs,
// such as the binary, is no memory of a document.
func (b *bed) resident() (service, children int) {
	pid := strconv.Itoa(b.svc.Process.Pid)
	service = anonymous(pid)
	tasks, _ := filepath.Glob("/proc/" + pid + "/task/*/children")
	for _, t := range tasks {
		list, _ := os.ReadFile(t) // a thread that has ended has none
		for _, child := range strings.Fields(string(list)) {
			children += anonymous(child)
		}
	}
	return service, children
}

func anonymous(pid string) (kib int) {
	status, _ := os.ReadFile("/proc/" + pid + "/status")
	for l := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(l, "RssAnon:"); ok {
			kib, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
		}
	}
	return kib
}

// benchIngestion measures memory, time and the runs beside a large text and a long PDF.
func benchIngestion(ctx context.Context, b *bed) error {
	if err := b.serve(ctx, simulated); err != nil {
		return err
	}
	var text strings.Builder
	r := rand.New(rand.NewPCG(1, 2))
	for n := 1; text.Len() < textBytes-100; n++ {
		text.WriteString(zipf(r))
		text.WriteString([...]string{" ", ". ", "\n\n"}[min(n%12/11+n%120/119, 2)])
	}
	pdf, err := book(bookPages)
	if err != nil {
		return err
	}
	const runsPerSecond = 50
	threads, err := b.threads(250)
	if err != nil {
		return err
	}
	run := func(i int) error {
		r, err := b.post(threads[i%len(threads)], "/say ok")
		if err == nil {
			err = b.follow(r, "", func(l []byte) bool { return string(l) != "event: run.completed" })
		}
		return err
	}
	if _, err := during(5*time.Second, runsPerSecond, run); err != nil { // warm
		return err
	}
	for _, d := range []struct{ name, body string }{{"book.pdf", pdf}, {"text.txt", text.String()}} {
		for _, load := range []int{runsPerSecond, 0} {
			if err := b.ingested(ctx, d.name, d.body, load, run); err != nil {
				return err
			}
		}
	}
	return nil
}

// ingested measures one document in a base of its own, and beside so many runs per second, which are measured before it for as long as with
// it. A document that is ready sooner is put again under other names: the hundredth part of few runs says nothing.
func (b *bed) ingested(ctx context.Context, name, body string, load int, run func(int) error) error {
	const least, most = 20 * time.Second, time.Minute
	var made struct{ ID string }
	if err := b.call("POST", "/v1/knowledge-bases", map[string]any{"name": fmt.Sprint(name, " ", load)}, &made); err != nil {
		return err
	}
	s := &shelf{bed: b, id: made.ID, name: name}
	stop := make(chan struct{})
	var alone []time.Duration
	if load > 0 {
		var err error
		if alone, err = during(least, load, run); err != nil {
			return err
		}
	}
	before, _ := b.resident()
	beside := make(chan error, 1)
	go func() {
		if load == 0 {
			beside <- nil
			return
		}
		measured := make(chan struct{})
		go func() {
			defer close(measured)
			select {
			case <-stop:
			case <-time.After(most):
			}
		}()
		took, err := at(load, measured, run)
		if err == nil {
			fmt.Printf("    %d runs/s alone: p50 %v p99 %v; beside %s: p50 %v p99 %v (%d runs, ratio of p99 %.2f, budget 1.3)\n", load, quantile(alone, .5), quantile(alone, .99),
				name, quantile(took, .5), quantile(took, .99), len(took), float64(quantile(took, .99))/float64(quantile(alone, .99)))
			_, err = at(load, stop, run)
		}
		beside <- err
	}()
	var service, children, together atomic.Int64
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
				own, theirs := b.resident()
				service.Store(max(service.Load(), int64(own-before)))
				children.Store(max(children.Load(), int64(theirs)))
				together.Store(max(together.Load(), int64(own-before+theirs)))
			}
		}
	}()
	var accepted, took time.Duration
	var err error
	began := time.Now()
	for n := 0; err == nil && (n == 0 || load > 0 && time.Since(began) < least); n++ {
		one := time.Now()
		if err = s.put(map[string]string{fmt.Sprint(n, " ", name): body}); err == nil {
			accepted = max(accepted, time.Since(one))
			err = s.ready(ctx, 15*time.Minute)
			took = max(took, time.Since(one))
		}
	}
	close(stop)
	<-watched
	if err = errors.Join(err, <-beside); err != nil {
		return err
	}
	fmt.Printf("  %s of %d KiB beside %d runs/s: accepted after %v, ready after %v; at most %d MiB more in the service, %d MiB in its readers, %d MiB together (budget 200)\n",
		name, len(body)>>10, load, accepted.Round(time.Millisecond), took.Round(time.Millisecond), service.Load()>>10, children.Load()>>10, together.Load()>>10)
	return nil
}
