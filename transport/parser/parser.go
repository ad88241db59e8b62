package parser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"agentsvc/schemas/document"
	"agentsvc/schemas/document/read"
)

// Config configures a Parser. Command is required.
type Config struct {
	Command []string      // starts a child: the binary and its arguments
	Env     []string      // of children
	Spool   string        // a directory for copies of files; empty: the system's
	Most    int           // children at a time; 0: one for each CPU, and one more (actors/ingest)
	Memory  int64         // bytes that a child may have in memory; 0: 192 MiB
	CPU     time.Duration // of a child, whole seconds; 0: 60 s
	Silence time.Duration // the longest time between two frames; 0: 90 s
	// Inline is the size up to which a text is read without a child, which takes longer to start
	// than such a text to read; 0: 64 KiB, negative: none is.
	Inline int64
}

// Parser reads documents. It is safe for concurrent use.
type Parser struct {
	cfg    Config
	places chan struct{}
}

// New returns a Parser.
func New(cfg Config) *Parser {
	if cfg.Most <= 0 {
		cfg.Most = runtime.NumCPU() + 1
	}
	if cfg.Memory <= 0 {
		cfg.Memory = 192 << 20
	}
	if cfg.CPU <= 0 {
		cfg.CPU = time.Minute
	}
	if cfg.Silence <= 0 {
		cfg.Silence = 90 * time.Second
	}
	if cfg.Inline == 0 {
		cfg.Inline = 64 << 10
	}
	return &Parser{cfg, make(chan struct{}, cfg.Most)}
}

// Parse reads a document, in a child unless it is a small text, and passes its chunks to emit, in order. A file that cannot be read is a
// *document.Fault; an error of emit or in.Open is returned as it is. Every other error is ours: the
// file may be read later.
func (p *Parser) Parse(ctx context.Context, in document.Input, c document.Chunking, emit func(document.Chunk) error) (info document.Info, err error) {
	defer func() { parses.WithLabelValues(outcome(ctx, err)).Inc() }()
	if in.Size == 0 {
		return info, &document.Fault{Reason: "the file is empty"}
	}
	select {
	case p.places <- struct{}{}:
		defer func() { <-p.places }()
	case <-ctx.Done():
		return info, ctx.Err()
	}
	if in.Size <= p.cfg.Inline {
		content, err := small(ctx, in)
		if err != nil {
			return info, err
		}
		if read.Plain(content) {
			return chunks(bytes.NewReader(content), in.Size, in.Name, in.MediaTypeHint, c, emit)
		}
	}
	running.Inc()
	defer running.Dec()
	file, err := p.copied(ctx, in)
	if err != nil {
		return info, err
	}
	defer file.Close()
	return p.run(ctx, file, in, c, emit)
}

// small returns the whole content.
func small(ctx context.Context, in document.Input) ([]byte, error) {
	content, err := in.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	all, err := io.ReadAll(io.LimitReader(content, in.Size+1))
	if err == nil && int64(len(all)) != in.Size {
		err = fmt.Errorf("the content has other than the %d bytes of its row", in.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("read a document: %w", err)
	}
	return all, nil
}

func outcome(ctx context.Context, err error) string {
	switch f := new(document.Fault); {
	case err == nil:
		return "ok"
	case errors.As(err, &f):
		return "fault"
	case ctx.Err() != nil:
		return "cancelled"
	}
	return "error"
}

// copied returns the content in a file without a name.
func (p *Parser) copied(ctx context.Context, in document.Input) (*os.File, error) {
	content, err := in.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	file, err := os.CreateTemp(p.cfg.Spool, "svc-document-*")
	if err != nil {
		return nil, fmt.Errorf("copy a document: %w", err)
	}
	if err = os.Remove(file.Name()); err == nil {
		var n int64
		if n, err = io.Copy(file, io.LimitReader(content, in.Size+1)); err == nil && n != in.Size {
			err = fmt.Errorf("the content has %d bytes, and its row says %d", n, in.Size)
		}
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("copy a document: %w", err)
	}
	return file, nil
}

// run starts a child for the file and takes its frames.
func (p *Parser) run(ctx context.Context, file *os.File, in document.Input, c document.Chunking, emit func(document.Chunk) error) (info document.Info, err error) {
	told, err := json.Marshal(order{in.Name, in.MediaTypeHint, in.Size, c, p.cfg.Memory, int64(p.cfg.CPU / time.Second)})
	if err != nil {
		return info, fmt.Errorf("encode an order: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(ctx, p.cfg.Command[0], p.cfg.Command[1:]...)
	cmd.Env = append([]string{}, p.cfg.Env...) // no more than that: the secrets of the service are in its own
	cmd.Stdin = bytes.NewReader(told)
	cmd.ExtraFiles = []*os.File{file}
	cmd.WaitDelay = time.Second
	said := &tail{}
	cmd.Stderr = said
	out, in2, err := os.Pipe()
	if err != nil {
		return info, fmt.Errorf("start a parser: %w", err)
	}
	defer out.Close()
	cmd.Stdout = in2
	dieWithParent(cmd)
	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The child dies with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		in2.Close()
		if err == nil {
			giveWay(cmd.Process.Pid) // before Wait, which lets another process have the number
		}
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return info, fmt.Errorf("start a parser: %w", err)
	}
	swelled := p.watch(ctx, cmd.Process.Pid, stop)
	last, taken := p.take(bufio.NewReaderSize(out, 64<<10), emit, stop)
	stopped := ctx.Err() != nil // before our own stop
	if taken != errCut {
		stop() // a child that was cut ends by itself, and its end says why
	}
	exit := <-ended
	stop()
	large := <-swelled
	dead := new(exec.ExitError)
	switch {
	case taken == errSilent: // the machine has no time for it: a child that computes meets its limit before
		return info, fmt.Errorf("%w: %s", errSilent, p.cfg.Silence)
	case taken != nil && taken != errCut:
		return info, taken
	case last != nil && last.Info != nil:
		return *last.Info, nil
	case last != nil && last.Fault != "":
		return info, &document.Fault{Reason: last.Fault}
	case last != nil:
		return info, fmt.Errorf("read a document: %s", last.Error)
	case large, said.has("out of memory", "cannot allocate memory"):
		return info, &document.Fault{Reason: fmt.Sprintf("reading the file needed more than %d MiB of memory", p.cfg.Memory>>20)}
	case stopped:
		return info, context.Cause(ctx)
	case errors.As(exit, &dead) && overtime(dead, p.cfg.CPU):
		return info, &document.Fault{Reason: fmt.Sprintf("reading the file took longer than %s of computing", p.cfg.CPU)}
	case said.has("stack overflow", "goroutine stack exceeds"):
		return info, &document.Fault{Reason: "the file is nested too deeply"}
	}
	return info, fmt.Errorf("a parser ended early: %w: %s", exit, said.last)
}

var (
	errCut    = errors.New("the parser's output ended before its last frame")
	errSilent = errors.New("the parser wrote nothing for too long")
)

// take passes chunks on and returns the last frame. stop ends the child, which then writes no
// more; it is called when no frame came for too long. The time that emit takes does not count.
func (p *Parser) take(r *bufio.Reader, emit func(document.Chunk) error, stop func()) (*frame, error) {
	for {
		watch := time.AfterFunc(p.cfg.Silence, stop)
		f, err := next(r)
		if !watch.Stop() {
			return nil, errSilent
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, errCut
		}
		if err != nil {
			return nil, fmt.Errorf("read what a parser wrote: %w", err)
		}
		if f.Chunk == nil {
			return f, nil
		}
		if err := emit(*f.Chunk); err != nil {
			return nil, err
		}
	}
}

// watch stops a child that has more memory than it may have, and says in the end whether it did.
func (p *Parser) watch(ctx context.Context, pid int, stop func()) <-chan bool {
	swelled := make(chan bool, 1)
	go func() {
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				swelled <- false
				return
			case <-look.C:
				if resident(pid) > p.cfg.Memory {
					swelled <- true
					stop()
					return
				}
			}
		}
	}()
	return swelled
}

// tail keeps the first bytes that a child writes to its standard error: a Go program that dies
// says why first.
type tail struct{ last []byte }

func (t *tail) Write(p []byte) (int, error) {
	if room := 4096 - len(t.last); room > 0 {
		t.last = append(t.last, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

func (t *tail) has(texts ...string) bool {
	for _, s := range texts {
		if bytes.Contains(t.last, []byte(s)) {
			return true
		}
	}
	return false
}
