// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cozystack.io/gpu/pkg/model/v1alpha1"
	"cozystack.io/gpu/services/budget-checker/internal/budget"
)

// known returns the namespace's mark: as it is stored, or else as this replica
// remembers it.
func (l *Ledgers) known(namespace string, marks *corev1.ConfigMap) string {
	if mark, ok := marks.Data[namespace]; ok {
		return mark
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marks[namespace]
}

func (l *Ledgers) readMarks(ctx context.Context) (*corev1.ConfigMap, error) {
	marks := &corev1.ConfigMap{}
	err := l.clients.core.Get().Namespace(l.namespace).Resource("configmaps").Name(marksName).Do(ctx).Into(marks)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("read configmap %s/%s: %w", l.namespace, marksName, err)
	}
	if marks.Data == nil {
		marks.Data = map[string]string{}
	}
	return marks, nil
}

func (l *Ledgers) writeMarks(ctx context.Context, marks *corev1.ConfigMap) error {
	marks.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}
	request := l.clients.core.Put().Name(marksName)
	if marks.UID == "" {
		marks.Namespace, marks.Name = l.namespace, marksName
		request = l.clients.core.Post()
	}
	err := request.Namespace(l.namespace).Resource("configmaps").Body(marks).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write configmap %s/%s: %w", l.namespace, marksName, err)
	}
	l.remember(marks)
	return nil
}

func (l *Ledgers) remember(marks *corev1.ConfigMap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(l.marks, marks.Data)
}

// sweepInterval is about how often the marks are swept.
const sweepInterval = 30 * time.Second

// sweep takes out the marks of namespaces that have gone. A namespace can take
// long to go, and no replica need be there to see it.
func (l *Ledgers) sweep(ctx context.Context, book *budget.Book) error {
	marks, err := l.readMarks(ctx)
	if err != nil {
		return err
	}
	var gone []string
	for namespace := range marks.Data {
		if book.Has(namespace) {
			continue
		}
		err := l.clients.core.Get().Resource("namespaces").Name(namespace).Do(ctx).Error()
		switch {
		case apierrors.IsNotFound(err):
			gone = append(gone, namespace)
		case err != nil:
			return fmt.Errorf("read namespace %s: %w", namespace, err)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	for _, namespace := range gone {
		delete(marks.Data, namespace)
	}
	if err := l.writeMarks(ctx, marks); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, namespace := range gone {
		delete(l.marks, namespace)
	}
	return nil
}

// ledgerFeed hands ledgers that a reflector sees to the book. Those that are
// not marked are left for Ensure.
type ledgerFeed struct {
	ledgers *Ledgers
	book    *budget.Book
}

// Add implements cache.ReflectorStore, as do the methods that follow.
func (f ledgerFeed) Add(item any) error {
	ledger := item.(*v1alpha1.GPUBudget)
	f.ledgers.mu.Lock()
	marked := strings.HasSuffix(f.ledgers.marks[ledger.Namespace], "/"+string(ledger.UID))
	f.ledgers.mu.Unlock()
	if ledger.Name == v1alpha1.GPUBudgetName && marked {
		f.book.Put(ledger)
	}
	return nil
}

// Update takes in a ledger that has changed.
func (f ledgerFeed) Update(item any) error { return f.Add(item) }

// Delete takes out a ledger that is gone.
func (f ledgerFeed) Delete(item any) error {
	f.book.Remove(item.(*v1alpha1.GPUBudget))
	return nil
}

// Replace takes in all ledgers.
func (f ledgerFeed) Replace(items []any, _ string) error {
	kept := map[types.UID]bool{}
	for _, item := range items {
		kept[item.(*v1alpha1.GPUBudget).UID] = true
		_ = f.Add(item)
	}
	f.book.Retain(kept)
	return nil
}

// Resync has nothing to do.
func (f ledgerFeed) Resync() error { return nil }
