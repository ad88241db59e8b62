package parser

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"agentsvc/schemas/document"
	"agentsvc/schemas/document/read"
)

// Command is the hidden command of the binary that runs Child.
const Command = "parse-document"

// order is what a child reads from its standard input.
type order struct {
	Name      string            `json:"name"`
	MediaType string            `json:"media_type"`
	Size      int64             `json:"size"`
	Chunking  document.Chunking `json:"chunking"`
	Memory    int64             `json:"memory"`
	CPU       int64             `json:"cpu"` // seconds
}

// fileDescriptor is where a child finds the file.
const fileDescriptor = 3

// Child reads its order from in, parses the file that its parent passed and writes frames to out.
// It is the whole life of the process.
func Child(in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("this command is for the service's own use: %w", err)
	}
	file := os.NewFile(fileDescriptor, "document")
	if file == nil {
		return errors.New("there is no file to read")
	}
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(o.Memory * 3 / 4)
	debug.SetGCPercent(50)
	if err := confine(o.Memory, o.CPU); err != nil {
		return fmt.Errorf("limit the parser: %w", err)
	}
	w := bufio.NewWriterSize(out, 64<<10)
	end := parse(file, &o, w)
	if err := write(w, end); err != nil {
		return err
	}
	return w.Flush()
}

// parse reads the file and returns the last frame.
func parse(file io.ReaderAt, o *order, w *bufio.Writer) *frame {
	info, err := chunks(file, o.Size, o.Name, o.MediaType, o.Chunking, func(c document.Chunk) error { return write(w, &frame{Chunk: &c}) })
	fault := new(document.Fault)
	switch {
	case err == nil:
		return &frame{Info: &info}
	case errors.As(err, &fault):
		return &frame{Fault: fault.Reason}
	}
	return &frame{Error: err.Error()}
}

// chunks reads a file and passes its chunks to emit.
func chunks(file io.ReaderAt, size int64, name, mediaType string, c document.Chunking, emit func(document.Chunk) error) (document.Info, error) {
	split := document.NewSplitter(c, emit)
	meta, err := read.Read(file, size, name, mediaType, read.Limits{}, split.Push)
	if err != nil {
		return document.Info{}, err
	}
	n, err := split.Close()
	return document.Info{MediaType: meta.MediaType, Title: meta.Title, Chunks: n}, err
}
