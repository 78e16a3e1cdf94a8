package resolver

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
)

// Over TCP each message has its length before it (RFC 1035, section 4.2.2).

func writeMessage(c net.Conn, message []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
	return err
}

var errEmpty = errors.New("empty message")

func readMessage(c net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	if len(message) == 0 {
		return nil, errEmpty
	}
	_, err := io.ReadFull(c, message)
	return message, err
}
