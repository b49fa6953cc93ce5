//! The conformance suite of blob stores, over a folder and over two servers that speak S3.

mod cases;
mod cloud;
mod direct;
mod place;

use place::Place;

/// Each case over each place.
macro_rules! over_every_place {
    ($($case:ident),* $(,)?) => {
        mod folder {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::cases::$case(&super::Place::folder()).await;
            })*
        }

        mod s3 {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::cases::$case(&super::Place::s3()).await;
            })*
        }

        mod moto {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = super::Place::moto() {
                    super::cases::$case(&place).await;
                }
            })*
        }
    };
}

over_every_place!(
    an_upload_becomes_visible_only_when_whole_and_right,
    cuts_around_every_piece_resume_and_move_no_byte_twice,
    an_upload_survives_a_restart,
    wrong_offset_digest_and_size_are_refused_and_leave_nothing,
    concurrent_uploads_of_one_digest_all_succeed,
    a_second_writer_is_told_to_wait_but_a_silent_one_gives_way,
    a_client_that_lost_its_place_continues_an_idle_upload,
    stale_uploads_are_collected,
    a_quota_refuses_before_a_byte_is_sent_and_counts_what_arrived,
    a_blob_that_comes_several_times_at_once_counts_once,
    a_scrub_finds_damage_below_the_filesystem,
    what_rots_is_taken_from_another_copy_that_is_whole,
    ranges_give_exactly_their_bytes,
    the_empty_blob_is_a_blob,
);
