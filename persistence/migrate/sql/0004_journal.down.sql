DROP FUNCTION svc_missed();
