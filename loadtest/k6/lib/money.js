// @ts-check
// What every script begins and ends with: a quiet stack, and the books that agree.
import { sleep } from 'k6';
import { Rate } from 'k6/metrics';

import { confirm, metrics, newOrder, random, read, sum } from './paymentd.js';
import { faults, ledger, listen, reset } from './simulator.js';

/** @typedef {import('./paymentd.js').Order} Order */
/** @typedef {import('./paymentd.js').Answer} Answer */
/** @typedef {import('./simulator.js').Entry} Entry */
/** @typedef {{run: string, base: import('./paymentd.js').Series, known: Order}} Run what setup hands on; known is a paid order */

/** Every look at the money; one that fails fails the run. */
export const moneyHolds = new Rate('money_holds');

/** Thresholds of every script. */
export const always = { checks: ['rate==1'], money_holds: ['rate==1'] };

/** Times for setup and teardown, which wait for a quiet stack. */
export const patience = { setupTimeout: '3m', teardownTimeout: '5m' };

/**
 * @param {import('./paymentd.js').Series} all
 * @returns {number} payments that are neither paid nor failed
 */
function unfinished(all) {
  return sum(all, 'paymentd_payments', { status: 'PENDING' }) + sum(all, 'paymentd_payments', { status: 'AWAITING_DEPOSIT' });
}

/**
 * Waits until nothing is unfinished. A scrape may be 2 s old, so it has to say so twice.
 *
 * @param {number} within seconds
 * @returns {number} how many are left
 */
function quiet(within) {
  const end = Date.now() + within * 1000;
  let left = unfinished(metrics());
  let seen = left === 0 ? 1 : 0;
  while (seen < 2 && Date.now() < end) {
    sleep(2.5);
    left = unfinished(metrics());
    seen = left === 0 ? seen + 1 : 0;
  }
  return left;
}

/** The breaker of an earlier run may still be open; buyers are its trials. */
function closeBreaker() {
  const end = Date.now() + 90_000;
  while (sum(metrics(), 'paymentd_breaker_state', { state: 'closed' }) !== 1) {
    if (Date.now() > end) {
      throw new Error('setup: the breaker does not close; is it forced open?');
    }
    confirm(newOrder('setup', 'w'), { phase: 'setup' });
    sleep(0.5);
  }
}

/**
 * For setup: makes the gateway well, waits for what an earlier run left, empties the simulator.
 *
 * @param {import('./simulator.js').Fault[]} [wrong] faults from now on
 * @returns {Run}
 */
export function begin(wrong = []) {
  faults([]);
  listen(true);
  closeBreaker();
  const left = quiet(90);
  if (left > 0) {
    throw new Error(`setup: ${left} payments are unfinished, and the simulator would forget them; wait, or use a new database`);
  }
  reset();
  const run = random(6);
  const base = metrics();
  const known = newOrder(run, 'known');
  const a = confirm(known, { phase: 'setup' });
  if (a.status !== 200) {
    throw new Error(`setup: a first payment was answered ${a.status} ${a.word}: ${a.raw}`);
  }
  faults(wrong);
  return { run, base, known };
}

/**
 * Counts a finding.
 *
 * @param {boolean} ok
 * @param {string} what
 * @param {string[]} [list]
 */
function hold(ok, what, list) {
  moneyHolds.add(ok);
  if (!ok) {
    console.error(`money: ${what}`);
    list?.push(what);
  }
}

/**
 * Checks that a PAID that a caller saw is an approval at the gateway, of the same order and amount.
 *
 * @param {Order} order
 * @param {Answer} a
 */
export function verify(order, a) {
  if (a.status !== 200) {
    return;
  }
  const there = ledger({ paymentKey: order.paymentKey }).payments;
  const e = there[0];
  hold(
    there.length === 1 && e?.approvals === 1 && e.orderId === order.orderId && e.balance === order.amount && a.body?.amount === order.amount,
    `${order.orderId} was answered 200, the gateway has ${JSON.stringify(there)}`,
  );
}

/**
 * @param {Entry} e
 * @param {Answer} a
 * @returns {boolean} whether our row and the gateway's entry say the same
 */
function agrees(e, a) {
  if (a.status !== 200 || a.body.paymentKey !== e.paymentKey || a.body.amount !== e.amount) {
    return false;
  }
  return a.word === 'PAID' ? e.approvals === 1 && e.balance === e.amount : a.word === 'FAILED' && e.balance === 0;
}

/**
 * For teardown: makes the gateway well, waits for recovery and compares the books. It throws when they do not agree.
 *
 * @param {Run} run
 * @param {{within?: number, sample?: number}} [how] seconds for recovery; how many orders are read one by one
 */
export function end(run, how = {}) {
  faults([]);
  listen(true);
  /** @type {string[]} */
  const wrong = [];
  const left = quiet(how.within ?? 60);
  hold(left === 0, `${left} payments are unfinished after ${how.within ?? 60} s`, wrong);

  const all = ledger();
  const ours = all.payments.filter((e) => e.orderId.includes(`-${run.run}-`));
  /** @type {Map<string, number>} */
  const charged = new Map();
  for (const e of ours) {
    charged.set(e.orderId, (charged.get(e.orderId) ?? 0) + e.approvals);
    hold(e.total === e.approvals * e.amount, `${e.orderId}: ${e.total} was taken for ${e.amount}`, wrong);
  }
  for (const [orderId, n] of charged) {
    hold(n <= 1, `${orderId} was charged ${n} times`, wrong);
  }
  const taken = all.payments.reduce((n, e) => n + e.total, 0);
  hold(all.approvedSum === taken, `the gateway's sum is ${all.approvedSum}, its payments have ${taken}`, wrong);
  hold(all.cancels === 0 && all.canceledSum === 0, `${all.cancels} cancels: nothing here gives money back`, wrong);

  const now = metrics();
  const paid = sum(now, 'paymentd_settled_total', { status: 'PAID' }) - sum(run.base, 'paymentd_settled_total', { status: 'PAID' });
  hold(paid === all.approvals, `${paid} became PAID here, ${all.approvals} were approved at the gateway`, wrong);
  const incidents = sum(now, 'paymentd_incidents_open') - sum(run.base, 'paymentd_incidents_open');
  hold(incidents === 0, `${incidents} incidents were opened`, wrong);

  const step = Math.max(1, Math.ceil(ours.length / (how.sample ?? 300)));
  for (let i = 0; i < ours.length; i += step) {
    const e = /** @type {Entry} */ (ours[i]);
    const a = read(e.orderId);
    hold(agrees(e, a), `${e.orderId}: the gateway has ${JSON.stringify(e)}, paymentd says ${a.raw}`, wrong);
  }
  console.log(`money: ${all.approvals} approvals, ${all.approvedSum} won, ${ours.length} orders at the gateway, ${wrong.length} findings`);
  if (wrong.length > 0) {
    throw new Error(`money: ${wrong.length} findings, the first: ${wrong[0]}`);
  }
}
