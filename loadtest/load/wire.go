package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// wire is one kept-alive connection.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	head []byte
	out  []byte
}

func newWire(conn net.Conn, o Options) *wire {
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 2<<10), head: fmt.Appendf(nil,
		"POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: ",
		o.Path, o.Address, o.Secret)}
}

// answer is what a load run keeps of an answer.
type answer struct {
	status int
	// own is app + db of Server-Timing; timed tells whether it was there.
	own   time.Duration
	timed bool
}

func (w *wire) post(body []byte) (a answer, err error) {
	w.out = append(w.out[:0], w.head...)
	w.out = strconv.AppendInt(w.out, int64(len(body)), 10)
	w.out = append(w.out, "\r\n\r\n"...)
	w.out = append(w.out, body...)
	if _, err := w.conn.Write(w.out); err != nil {
		return a, err
	}
	return w.read()
}

var errShape = errors.New("not an HTTP/1.1 answer with a length")

// read reads one answer to its end and drops its body.
func (w *wire) read() (a answer, err error) {
	line, err := w.line()
	if err != nil {
		return a, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return a, errShape
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, errShape
	}
	length := -1
	for {
		if line, err = w.line(); err != nil {
			return a, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch string(name) {
		case "Content-Length":
			if length, err = strconv.Atoi(string(value)); err != nil {
				return a, errShape
			}
		case "Server-Timing":
			a.own, a.timed = ownTime(value)
		}
	}
	if length < 0 {
		return a, errShape
	}
	_, err = w.in.Discard(length)
	return a, err
}

// line is the next line without its end, valid until the next read.
func (w *wire) line() ([]byte, error) {
	line, err := w.in.ReadSlice('\n')
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return bytes.TrimRight(line, "\r\n"), err
}

// ownTime adds app and db of "gateway;dur=1.000, db;dur=2.000, app;dur=3.000".
func ownTime(header []byte) (own time.Duration, ok bool) {
	for part := range bytes.SplitSeq(header, []byte(", ")) {
		name, text, found := bytes.Cut(part, []byte(";dur="))
		if !found || string(name) != "app" && string(name) != "db" {
			continue
		}
		ms, err := strconv.ParseFloat(string(text), 64)
		if err != nil {
			return 0, false
		}
		own, ok = own+time.Duration(ms*float64(time.Millisecond)), true
	}
	return own, ok
}
