package document

import (
	"context"
	"io"
)

// Kind is the kind of a block.
type Kind uint8

// The kinds of blocks.
const (
	Paragraph Kind = iota
	Heading
	List
	Row
	Code
)

func (k Kind) String() string {
	switch k {
	case Paragraph:
		return "paragraph"
	case Heading:
		return "heading"
	case List:
		return "list"
	case Row:
		return "row"
	case Code:
		return "code"
	}
	return "unknown"
}

// Block is a piece of a document, in reading order.
type Block struct {
	Kind  Kind
	Level int    // of a heading, from 1; of a list item, its depth from 1
	Text  string // a row: its cells, separated by tabs
	Page  int    // page or slide, from 1; 0: the document has no pages
	// Header is the header row of a row's table, its cells separated by tabs. The header row is
	// no block of its own.
	Header string
	// Continues means that Text goes on where the block before it ended, without a separator: a
	// reader cuts very long blocks.
	Continues bool
}

// Chunk is a piece of a document as it is indexed.
type Chunk struct {
	Position int // from 0, without gaps
	Text     string
	// Overlap is how many bytes at the start of Text repeat text of earlier chunks: the end of
	// the chunk before, or the header row of a table. The rest of all chunks, in order, is the
	// document.
	Overlap int
	Heading string // the headings above, outermost first, joined by HeadingSeparator; may be empty
	Page    int    // page or slide of the text, from 1; 0: the document has no pages
	Tokens  int    // Count(Text)
}

// HeadingSeparator joins the headings of Chunk.Heading.
const HeadingSeparator = " › "

// Fault is why a file cannot be read. The file is at fault: reading it again changes nothing.
type Fault struct {
	Reason string // for a person, in plain words, without a full stop
}

func (f *Fault) Error() string { return f.Reason }

// Input is a file to read.
type Input struct {
	Name          string // as its owner calls it; a hint of its kind, and nothing more
	MediaTypeHint string
	Size          int64 // bytes
	// Open returns the content. It is called at most once.
	Open func(ctx context.Context) (io.ReadCloser, error)
}

// Info is what is known of a file that was read.
type Info struct {
	MediaType string
	Chunks    int
	Title     string // may be empty
}
