package read

import (
	"archive/zip"
	"encoding/xml"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/net/html/charset"
)

const (
	// mostMembers limits the files in an archive.
	mostMembers = 20_000
	// longestToken limits a text, tag or comment of XML, in bytes.
	longestToken = 8 << 20
	// xmlDepth limits how deep elements of XML are nested.
	xmlDepth = 2000
)

// archive is a zip archive whose members expand to a limited number of bytes together. Its
// names are looked up and never used as paths.
type archive struct {
	members map[string]*zip.File
	left    int64
	limit   int64
	what    string // "the presentation"
}

// detectZip finds out what an archive is.
func (f *file) detectZip() (kind, error) {
	if f.zipCount() > mostMembers {
		return kind{}, faultf("the archive holds more than %d files", mostMembers)
	}
	z, err := zip.NewReader(f.in, f.size)
	if err != nil {
		return kind{}, damaged(err, "the archive")
	}
	if len(z.File) > mostMembers {
		return kind{}, faultf("the archive holds more than %d files", mostMembers)
	}
	a := &archive{members: make(map[string]*zip.File, len(z.File)), left: f.lim.ExpandedBytes, limit: f.lim.ExpandedBytes}
	for _, m := range z.File {
		name := strings.TrimPrefix(strings.ReplaceAll(m.Name, `\`, "/"), "/")
		if _, twice := a.members[name]; !twice {
			a.members[name] = m
		}
	}
	for _, k := range []struct {
		main, mediaType, what string
		read                  func(*file, *archive) error
	}{
		{"word/document.xml", typeDocx, "the document", readDocx},
		{"ppt/presentation.xml", typePptx, "the presentation", readPptx},
		{"xl/workbook.xml", typeXlsx, "the workbook", readXlsx},
	} {
		if a.members[k.main] != nil {
			a.what = k.what
			return kind{k.mediaType, func(f *file) error { return k.read(f, a) }}, nil
		}
	}
	switch {
	case a.members["xl/workbook.bin"] != nil:
		return kind{}, unreadable("a binary workbook; save it as .xlsx")
	case a.members["EncryptedPackage"] != nil:
		return kind{}, fault("the file is protected by a password")
	case a.members["META-INF/container.xml"] != nil:
		return kind{}, unreadable("an e-book")
	case a.members["content.xml"] != nil:
		return kind{}, unreadable("an OpenDocument file; save it as .docx, .xlsx or .pptx")
	}
	return kind{}, unreadable("a ZIP archive")
}

// part reads a member within the archive's limit.
type part struct {
	io.ReadCloser
	a       *archive
	inToken int64 // bytes since the last token of XML
}

func (p *part) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.a.left -= int64(n)
	p.inToken += int64(n)
	switch {
	case p.a.left < 0:
		return n, faultf("the archive expands to more than %d MiB", p.a.limit>>20)
	case p.inToken > longestToken:
		return n, faultf("%s holds a text or tag of more than %d MiB", p.a.what, longestToken>>20)
	}
	return n, err
}

func (a *archive) has(name string) bool { return a.members[name] != nil }

func (a *archive) open(name string) (*part, error) {
	m := a.members[name]
	if m == nil {
		return nil, faultf("%s is damaged: a part is missing", a.what)
	}
	if m.Flags&1 != 0 {
		return nil, fault("the file is protected by a password")
	}
	in, err := m.Open()
	if err != nil {
		return nil, damaged(err, a.what)
	}
	return &part{ReadCloser: in, a: a}, nil
}

// element is an element of XML on its way through a part.
type element struct {
	xml.StartElement
	parents []string // local names, outermost first
}

// attr returns an attribute by its local name.
func (e *element) attr(local string) string {
	for _, a := range e.Attr {
		if a.Name.Local == local {
			return a.Value
		}
	}
	return ""
}

// relation returns the attribute r:id, r:embed or similar: one in a namespace.
func (e *element) relation(local string) string {
	for _, a := range e.Attr {
		if a.Name.Local == local && a.Name.Space != "" {
			return a.Value
		}
	}
	return ""
}

// handler takes what an XML part holds. Nil functions are not called.
type handler struct {
	start func(*element) (skip bool, err error) // skip: leave out the element
	end   func(local string) error
	text  func(string) error
}

// xml reads a member as XML: without document types, entities and references to other files,
// and with bounded depth and tokens.
func (a *archive) xml(name string, h handler) (err error) {
	in, err := a.open(name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was read
	dec := xml.NewDecoder(in)
	dec.CharsetReader = charset.NewReaderLabel
	var parents []string
	for skipping := 0; ; {
		in.inToken = 0
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged(err, a.what)
		}
		err = nil
		switch t := t.(type) {
		case xml.StartElement:
			if len(parents) >= xmlDepth {
				return faultf("%s is nested more than %d deep", a.what, xmlDepth)
			}
			skip := false
			if skipping == 0 && h.start != nil {
				skip, err = h.start(&element{t, parents})
			}
			parents = append(parents, t.Name.Local)
			if skip && skipping == 0 {
				skipping = len(parents)
			}
		case xml.EndElement:
			seen := skipping == 0
			if skipping == len(parents) {
				skipping = 0
			}
			parents = parents[:len(parents)-1]
			if seen && h.end != nil {
				err = h.end(t.Name.Local)
			}
		case xml.CharData:
			if skipping == 0 && h.text != nil {
				err = h.text(string(t))
			}
		case xml.Directive:
			return faultf("%s holds a document type declaration, which is not allowed", a.what)
		}
		if err != nil {
			return err
		}
	}
}

// relations reads which parts a part refers to, by id. Types are cut to their last word.
func (a *archive) relations(name string) (targets, types map[string]string, err error) {
	dir := path.Dir(name)
	rels := path.Join(dir, "_rels", path.Base(name)+".rels")
	targets, types = map[string]string{}, map[string]string{}
	if !a.has(rels) {
		return targets, types, nil
	}
	err = a.xml(rels, handler{start: func(e *element) (bool, error) {
		if e.Name.Local == "Relationship" && e.attr("TargetMode") != "External" {
			target := strings.ReplaceAll(e.attr("Target"), `\`, "/")
			if !strings.HasPrefix(target, "/") {
				target = path.Join(dir, target)
			}
			targets[e.attr("Id")] = strings.TrimPrefix(path.Clean("/"+target), "/")
			kind := e.attr("Type")
			types[e.attr("Id")] = kind[strings.LastIndexByte(kind, '/')+1:]
		}
		return false, nil
	}})
	return targets, types, err
}

// core reads the title in the properties of a document.
func (f *file) core(a *archive) error {
	if !a.has("docProps/core.xml") {
		return nil
	}
	in, title := false, ""
	err := a.xml("docProps/core.xml", handler{
		start: func(e *element) (bool, error) { in = e.Name.Local == "title"; return false, nil },
		end:   func(string) error { in = false; return nil },
		text: func(text string) error {
			if in {
				title += text
			}
			return nil
		},
	})
	if err == nil {
		f.setTitle(title)
	}
	return err
}
